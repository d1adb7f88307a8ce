#!/usr/bin/env python3
"""The files with rows (rows.h), for meson.build.

    rows.py MACRO FOLDER...   prints a line per file FOLDER/NAME.c or FOLDER/ROOM/NAME.c that has a row MACRO(...), by its path
                              from FOLDER, and a line per row that begins with a name: this name
"""
import glob
import os
import re
import sys


def main():
    row = re.compile(r'^%s\(\w+\) = \{\n?(?:    \.name = "([a-z-]+)")?' % re.escape(sys.argv[1]), re.MULTILINE)
    names = []
    for folder in sys.argv[2:]:
        for path in sorted(glob.glob(os.path.join(folder, "*.c")) + glob.glob(os.path.join(folder, "*", "*.c"))):
            with open(path, encoding="utf-8") as f:
                found = row.findall(f.read())
            if found:
                print(os.path.relpath(path, folder))
                names += [name for name in found if name]
    print("\n".join(names))


if __name__ == "__main__":
    main()
