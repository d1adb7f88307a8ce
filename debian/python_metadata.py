#!/usr/bin/env python3
"""Writes the metadata of the Python package, as pip would: its name, version and dependencies, and its entry points.

    python_metadata.py PYPROJECT FOLDER SCRIPTS      SCRIPTS: the folder of programs

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
    # the other programs of the project's wheel are packages of their own
    scripts = {name: place for name, place in project["scripts"].items() if name.startswith("kvcobra-")}
    lines += ["[console_scripts]"] + [f"{name} = {place}" for name, place in scripts.items()]
    write(folder, "entry_points.txt", lines)

    os.makedirs(sys.argv[3], exist_ok=True)
    for name, place in scripts.items():
        module, function = place.split(":")
        write(sys.argv[3], name, ["#!/usr/bin/python3", "import sys", f"from {module} import {function}", f"sys.exit({function}())"])
        os.chmod(os.path.join(sys.argv[3], name), 0o755)


def write(folder, name, lines):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main()
