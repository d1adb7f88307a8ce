#!/usr/bin/env python3
"""Adds up meson test logs and prints 'N passed, N failed, N skipped' as the last line; exit status 1 if a test failed.

A test program that ends with such a line counts with its cases; any other test counts as one. A program that failed without
a failed case (a crash, a time-out, a leak found at exit) counts as one more failure.
"""
import json
import re
import sys

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
PASSED, SKIPPED = {"OK", "EXPECTEDFAIL"}, {"SKIP"}


def count(test):
    """(passed, failed, skipped) of one line of a log."""
    result = test["result"]
    found = COUNTS.findall(test.get("stdout") or "")
    if found:
        passed, failed, skipped = map(int, found[-1])
        if result not in PASSED | SKIPPED and failed == 0:
            failed = 1
        return passed, failed, skipped
    return int(result in PASSED), int(result not in PASSED | SKIPPED), int(result in SKIPPED)


def main(paths):
    total = [0, 0, 0]
    for path in paths:
        with open(path, encoding="utf-8") as log:
            for line in log:
                test = json.loads(line)
                counts = count(test)
                total = [a + b for a, b in zip(total, counts)]
                if counts[1]:
                    print(f"failed: {test['name']} ({path})")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
