#!/usr/bin/env python3
"""Fails where more headers of the product than SINGLE_MAX are included by one file only, or by none.

    python3 tests/form/headers.py            checks
    python3 tests/form/headers.py --print    prints these headers, and the file that includes each

The .c file of the header's name does not count, tests do. A header for one file hides nothing from the others: its lines belong
to that file, or to the header of its subject. Some are right as they are: the struct that a handle embeds, the loops of an
instruction set, a kernel's parts, a library opened at run time, an interface that breaks a circle.
"""
import collections
import os
import sys

import source

SINGLE_MAX = 52  # only ever lowered
ADVICE = "Put what the header declares into its only user, or into the header of its subject; headers.py --print lists them."


def single(files, product):
    """{header: its users} of the headers in @product that at most one of @files includes beside the .c file of the same name."""
    users = collections.defaultdict(set)
    for file in files:
        for name, quoted, _ in file.includes:
            if quoted:
                users[name].add(file.path)
                users[os.path.normpath(os.path.join(os.path.dirname(file.path), name))].add(file.path)
    public = {"client/kvcobra", "alloc/kvcobra"}
    found = {}
    for path in product:
        others = users[path] - {os.path.splitext(path)[0] + ".c"}
        if source.is_header(path) and not any(path.startswith(p) for p in public) and len(others) <= 1:
            found[path] = sorted(others)
    return found


def check(found, most):
    return [] if len(found) <= most else [f"{len(found)} headers are for one file, more than {most}"]


def main():
    source.root()
    product = source.c_files(source.PRODUCT)
    found = single([source.read(path) for path in source.c_files()], product)
    if sys.argv[1:] == ["--print"]:
        for path, users in sorted(found.items()):
            print(f"{path:48} {' '.join(users)}")
    return source.finish(check(found, SINGLE_MAX), ADVICE)


if __name__ == "__main__":
    sys.exit(main())
