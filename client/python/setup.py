"""Builds the package, whose modules _declarations, _alloc_declarations and _openings are generated.

In a checkout the headers and sources they come from stand beside this folder. A source distribution has the generated files
instead. Nothing is written into this folder, which may be read-only.
"""
import atexit
import os
import shutil
import sys
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)  # build front ends do not add the folder of setup.py

import generate_declarations  # noqa: E402
import generate_openings  # noqa: E402

CLIENT = os.path.dirname(HERE)
HEADERS = [os.path.join(CLIENT, name) for name in ("kvcobra.h", "kvcobra-gpu.h", "kvcobra-call.h", "kvcobra-llama.h", "kvcobra-tiers.h")]
ALLOC_HEADERS = [*HEADERS, os.path.join(os.path.dirname(CLIENT), "alloc", "kvcobra-alloc.h")]
OPENINGS = os.path.join(os.path.dirname(CLIENT), "tools", "calibrate", "corpus_openings.c")
MODULES = ("_declarations.py", "_alloc_declarations.py", "_openings.py")


def generate(package):
    """Writes the modules into the folder @package, unless they came with the source."""
    lacking = [path for path in (*ALLOC_HEADERS, OPENINGS) if not os.path.exists(path)]
    if not lacking:
        os.makedirs(package, exist_ok=True)
        generate_declarations.write(os.path.join(package, MODULES[0]), HEADERS)
        generate_declarations.write(os.path.join(package, MODULES[1]), ALLOC_HEADERS)
        generate_declarations.replace(os.path.join(package, MODULES[2]), generate_openings.module(OPENINGS))
    elif not all(os.path.exists(os.path.join(package, name)) for name in MODULES):
        sys.exit(f"kvcobra: {lacking[0]} is missing, and so are the modules that are made of it: build from a whole checkout "
                 "or from a source distribution")


class BuildModules(build_py):
    def run(self):
        super().run()
        generate(os.path.join(HERE if self.editable_mode else self.build_lib, "kvcobra"))


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        generate(os.path.join(base_dir, "kvcobra"))


work = tempfile.mkdtemp(prefix="kvcobra-build-")
atexit.register(shutil.rmtree, work, True)
setup(cmdclass={"build_py": BuildModules, "sdist": SourceDistribution},
      options={"build": {"build_base": work}, "egg_info": {"egg_base": work}})
