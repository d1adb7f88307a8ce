#!/usr/bin/env python3
"""The files of commands and the names of their rows, for meson.build.

    rows.py TOOLS   prints a line per file TOOLS/ROOM/cmd_NAME.c that has a row COMMAND(...), and a line per row: its name
"""
import glob
import os
import re
import sys

ROW = re.compile(r'^COMMAND\(\w+\) = \{\n    \.name = "([a-z-]+)"', re.MULTILINE)


def main():
    folder = sys.argv[1]
    names = []
    for path in sorted(glob.glob(os.path.join(folder, "*", "cmd_*.c"))):
        with open(path, encoding="utf-8") as f:
            found = ROW.findall(f.read())
        if found:
            print(os.path.relpath(path, folder))
            names += found
    print("\n".join(names))


if __name__ == "__main__":
    main()
