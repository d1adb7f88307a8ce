"""Generates kvcobra/_declarations.py and _alloc_declarations.py from the public headers before setuptools collects the files.

In a checkout the headers stand beside this folder. A source distribution has the generated files instead of the headers.
"""
import os
import shutil
import sys

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)  # build front ends do not add the folder of setup.py

import generate_declarations  # noqa: E402

CLIENT = os.path.dirname(HERE)
HEADERS = [os.path.join(CLIENT, name) for name in ("kvcobra.h", "kvcobra-tiers.h")]
ALLOC_HEADERS = [*HEADERS, os.path.join(os.path.dirname(CLIENT), "alloc", "kvcobra-alloc.h")]
LICENSE = os.path.join(os.path.dirname(CLIENT), "LICENSE")

if all(os.path.exists(path) for path in ALLOC_HEADERS):
    generate_declarations.write(os.path.join(HERE, "kvcobra", "_declarations.py"), HEADERS)
    generate_declarations.write(os.path.join(HERE, "kvcobra", "_alloc_declarations.py"), ALLOC_HEADERS)
    shutil.copyfile(LICENSE, os.path.join(HERE, "LICENSE"))
setup()
