#!/usr/bin/env python3
"""Writes kvcobra/_openings.py: the beginnings of the texts that a model writes, from tools/calibrate/corpus_openings.c.

    python3 generate_openings.py OUTPUT SOURCE

setup.py and meson run this program at build time, so that the command and the package begin texts alike.
"""
import ast
import re
import sys

import generate_declarations

KIND = re.compile(r"static const char \*const opening_(\w+)\[\] = \{(.*?)\n\};", re.DOTALL)
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|,|\s+')


class SourceError(Exception):
    pass


def strings(text):
    """The strings of an initialiser. Adjacent literals are one string; escapes are those that C and Python share."""
    found, joined, at = [], b"", 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise SourceError(f"'{text[at:at + 20]}' is no string")
        at = token.end()
        if token.group() == ",":
            found.append(joined.decode())
            joined = b""
        elif token.group().startswith('"'):
            joined += ast.literal_eval("b" + token.group())
    return found + ([joined.decode()] if joined else [])


def openings(text):
    """Name and beginnings of each kind, in the order of the source."""
    kinds = [(name, strings(body)) for name, body in KIND.findall(text)]
    if not kinds or not all(found for _, found in kinds):
        raise SourceError("it has no beginnings of texts")
    return kinds


def module(path):
    """The text of the Python module."""
    with open(path, encoding="utf-8") as file:
        kinds = openings(file.read())
    lines = [f"    ({name!r}, (\n" + "".join(f"        {s!r},\n" for s in found) + "    )),\n" for name, found in kinds]
    return '"""Beginnings of texts, written by generate_openings.py. Do not edit."""\n\nOPENINGS = (\n' + "".join(lines) + ")\n"


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        generate_declarations.replace(arguments[0], module(arguments[1]))
    except (SourceError, OSError) as e:
        print(f"generate_openings: {arguments[1]}: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
