"""What the tests of this folder share: the programs and models that tools/check_engines.sh names, and daemons.

Environment: KVCOBRA_LIBRARY, KVC_KVCOBRAD and KVC_KVCOBRA as for client/python/tests/; KVC_ENGINE_GGUF, a model; KVC_ENGINE_TABLE,
a table for it; KVC_ENGINE_MODELS, a folder that convert.py made of it; KVC_LLAMA_SHARE, the example of client/llama/;
KVC_LLAMA_SERVER, a Python that has the package xllamacpp; KVC_TINY_MODEL, which makes small random models. A case whose variable is not set is skipped.
"""
import json
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python", "tests"))

from support import Daemon  # noqa: E402, F401

TIMEOUT_S = 600


def need(variable):
    value = os.environ.get(variable)
    if not value:
        raise unittest.SkipTest(f"{variable} is not set: see tests/engines/README.md")
    return value


def source(path):
    """A file of the project."""
    return os.path.join(ROOT, path)


def table_model(table):
    """Digest of the model that a table file is for."""
    done = subprocess.run([need("KVC_KVCOBRA"), "inspect", table, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["model_digest"]


def llama_share(case, daemon, digest, gguf, text, *options):
    """Numbers that the example prints, by name."""
    done = subprocess.run([need("KVC_LLAMA_SHARE"), "--socket", daemon.socket, *options, gguf, digest, text],
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    case.assertEqual(done.returncode, 0, done.stderr)
    found = re.findall(r"^([^:\n]+): ([-+.e0-9]+)", done.stdout, re.MULTILINE)
    return {name: float(value) for name, value in found}
