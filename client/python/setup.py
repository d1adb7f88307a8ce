"""Generates kvcobra/_declarations.py, _alloc_declarations.py and _openings.py before setuptools collects the files.

In a checkout the headers and sources they come from stand beside this folder. A source distribution has the generated files instead.
"""
import os
import shutil
import sys

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)  # build front ends do not add the folder of setup.py

import generate_declarations  # noqa: E402
import generate_openings  # noqa: E402

CLIENT = os.path.dirname(HERE)
HEADERS = [os.path.join(CLIENT, name) for name in ("kvcobra.h", "kvcobra-gpu.h", "kvcobra-call.h", "kvcobra-llama.h", "kvcobra-tiers.h")]
ALLOC_HEADERS = [*HEADERS, os.path.join(os.path.dirname(CLIENT), "alloc", "kvcobra-alloc.h")]
OPENINGS = os.path.join(os.path.dirname(CLIENT), "tools", "calibrate", "corpus_openings.c")
LICENSE = os.path.join(os.path.dirname(CLIENT), "LICENSE")

if all(os.path.exists(path) for path in (*ALLOC_HEADERS, OPENINGS)):
    generate_declarations.write(os.path.join(HERE, "kvcobra", "_declarations.py"), HEADERS)
    generate_declarations.write(os.path.join(HERE, "kvcobra", "_alloc_declarations.py"), ALLOC_HEADERS)
    generate_declarations.replace(os.path.join(HERE, "kvcobra", "_openings.py"), generate_openings.module(OPENINGS))
    shutil.copyfile(LICENSE, os.path.join(HERE, "LICENSE"))
setup()
