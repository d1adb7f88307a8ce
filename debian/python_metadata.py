#!/usr/bin/env python3
"""Writes the metadata of the Python package, as pip would: its name, version and dependencies, and its entry points.

    python_metadata.py PYPROJECT FOLDER

setuptools of Debian 12 cannot read the file's licence field, which is in the form of setuptools 77 and later.
"""
import os
import sys
import tomllib


def main():
    with open(sys.argv[1], "rb") as file:
        project = tomllib.load(file)["project"]
    folder = os.path.join(sys.argv[2], f"{project['name']}-{project['version']}.dist-info")
    os.makedirs(folder, exist_ok=True)

    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}",
             f"Summary: {project['description']}", f"License: {project['license']}",
             f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {one}" for one in project["classifiers"]]
    lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
    for extra, wanted in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}"] + [f"Requires-Dist: {one} ; extra == '{extra}'" for one in wanted]
    write(folder, "METADATA", lines)

    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]"] + [f"{name} = {place}" for name, place in points.items()]
    write(folder, "entry_points.txt", lines)


def write(folder, name, lines):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main()
