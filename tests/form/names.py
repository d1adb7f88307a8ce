#!/usr/bin/env python3
"""Fails where a name of the product does not begin with its module's word, or means two things.

    python3 tests/form/names.py

- An external function has one definition.
- An exported function begins with a word of its file's name or of a folder that holds the file. kvc_ is the public prefix.
- At most 5 % of the static functions share their name with a static function of another file.
- Within one program a struct, union or enum has one definition.

Loops that are compiled once per instruction set and device code share names by design and are left out.
"""
import collections
import os
import re
import sys

import source

ADVICE = "Begin names with the word of their module (CONVENTIONS.md section 2)."
COLLISIONS_MAX = 0.05

# The folders and files that a program is built from.
PROGRAMS = {
    "kvcobrad": ("base/", "alloc/", "gpu/", "proto/", "daemon/"),
    "libkvcobra": ("base/", "alloc/", "gpu/", "proto/", "client/"),
    "kvcobra": ("base/", "alloc/", "gpu/", "proto/", "tools/", "client/kvcobra"),
    "kvcobra-lab": ("base/", "alloc/", "gpu/", "proto/", "tools/", "lab/", "client/kvcobra"),
    "kvcobra-mover": ("base/", "gpu/", "proto/", "mover/"),
}


def singular(word):
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def words_of(path):
    """Words of the file's name and of its folders' names."""
    return {singular(word) for word in re.split(r"[/_]", os.path.splitext(path)[0])}


def collision_share(files):
    """(share, {name: paths}) of the static functions whose name a static function of another file has too."""
    places = collections.defaultdict(list)
    for file in files:
        for function in file.functions:
            if function.is_static and not is_exempt(file.path):
                places[function.name].append(file.path)
    shared = {name: paths for name, paths in places.items() if len(set(paths)) > 1}
    n = sum(len(paths) for paths in places.values())
    return (sum(len(paths) for paths in shared.values()) / n if n else 0.0), shared


def check_statics(files):
    share, shared = collision_share(files)
    print(f"{100 * share:.1f} % of the static functions share their name with another file's")
    if share <= COLLISIONS_MAX:
        return []
    return [f"static function {name}() stands in {', '.join(sorted(set(paths)))}"
            for name, paths in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))]


def check_exported(files):
    findings, defined = [], {}
    for file in files:
        words = words_of(file.path)
        for function in file.functions:
            name = function.name
            if function.is_static or name == "main":
                continue
            where = f"{file.path}:{function.first_line}"
            first = defined.setdefault(name, file.path)
            if first != file.path:  # one file may hold both branches of an #if
                findings.append(f"{where}: {name}() is also defined in {first}")
            if not name.startswith("kvc_") and singular(name.split("_")[0]) not in words:
                findings.append(f"{where}: {name}() begins with no word of its file's or folders' names")
    return findings


def check_tags(files):
    findings = set()
    for program, folders in PROGRAMS.items():
        defined = {}
        for file in files:
            if not file.path.startswith(folders) or is_exempt(file.path):
                continue
            for tag, line in file.tags:
                first = defined.setdefault(tag, file.path)
                if first != file.path:
                    findings.add(f"{file.path}:{line}: '{tag}' is another type in {first}, within {program}")
    return sorted(findings)


def is_exempt(path):
    return path.startswith(source.KERNELS) or bool(source.PER_INSTRUCTION_SET.fullmatch(path))


def check(files):
    return check_exported(files) + check_statics(files) + check_tags(files)


if __name__ == "__main__":
    source.root()
    sys.exit(source.finish(check(source.product()), ADVICE))
