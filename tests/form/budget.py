#!/usr/bin/env python3
"""Fails where a room of the product or of the tests has more lines of C than budget.txt allows it, or has no line there.

    python3 tests/form/budget.py           checks
    python3 tests/form/budget.py --print   prints the lines of each room beside its budget

A room is a folder with C, C++ or CUDA files of its own; the rooms below tests/ are counted together by their first two folders.
"""
import collections
import os
import sys

import source

TABLE = "tests/form/budget.txt"
ADVICE = ("look first for what the room no longer needs, or has twice; if it must grow, its line in tests/form/budget.txt grows in the "
          "same commit, whose message says why.")


def room_of(path):
    folder = os.path.dirname(path)
    return "/".join(folder.split("/")[:2]) if folder.startswith("tests") else folder


def lines_of_rooms(paths, count):
    """{room: lines}"""
    rooms = collections.Counter()
    for path in paths:
        rooms[room_of(path)] += count(path)
    return dict(rooms)


def read_budgets(text):
    """{room: lines}, from lines of a room and a number; a '#' begins a comment."""
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if row}


def check(lines, budgets):
    findings = [f"{room}: {n} lines, more than {budgets[room]}" for room, n in sorted(lines.items()) if room in budgets and n > budgets[room]]
    findings += [f"{room}: {n} lines, and no line in {TABLE}" for room, n in sorted(lines.items()) if room not in budgets]
    return findings + [f"{room}: a line in {TABLE}, and no C" for room in sorted(budgets) if room not in lines]


def count_lines(path):
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)


def main():
    source.root()
    lines = lines_of_rooms(source.c_files(), count_lines)
    with open(TABLE, encoding="utf-8") as file:
        budgets = read_budgets(file.read())
    if sys.argv[1:] == ["--print"]:
        for room, n in sorted(lines.items()):
            print(f"{room:32} {n:6} of {budgets.get(room, 0):6}")
    return source.finish(check(lines, budgets), ADVICE)


if __name__ == "__main__":
    sys.exit(main())
