#!/usr/bin/env python3
"""Adds up meson test logs and prints 'N passed, N failed, N skipped' as the last line; exit status 1 if a test failed.

    test_summary.py FOLDER...          folders with testlog.json, and testlog-first.json where failed tests ran twice
    test_summary.py --failed LOG       prints the names of the tests that failed, one a line

A test program that ends with such a line counts with its cases; any other test counts as one. A program that failed without
a failed case (a crash, a time-out, a leak found at exit) counts as one more failure. Of a test that ran twice the second run
counts; if it passed then, its name is printed. After the name of a test that failed stand its failed cases and the end of its
output, four spaces in.
"""
import json
import os
import re
import sys

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
PASSED, SKIPPED = {"OK", "EXPECTEDFAIL"}, {"SKIP"}
FAILED_CASE = re.compile(r"(FAIL|ERROR|not ok)\b")
SHOWN_LINES = 30
CASE_LINES = 12  # of a failed case that stands before the shown end


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


def read_log(path):
    """The tests of a log, by name."""
    with open(path, encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    return {test["name"]: test for test in tests}


def print_failed(name, folder, test):
    print(f"failed: {name} ({folder}), {test['result']}")
    for stream in ("stdout", "stderr"):
        lines = (test.get(stream) or "").splitlines()
        before = lines[:-SHOWN_LINES]
        for i, line in enumerate(before):
            if FAILED_CASE.match(line):
                print("\n".join("    " + shown for shown in before[i:i + CASE_LINES]))
        for line in lines[-SHOWN_LINES:]:
            print("    " + line)


def read_folder(folder):
    """The counts of each test of a build; prints what failed, and what failed once."""
    tests = read_log(os.path.join(folder, "testlog.json"))
    first_path = os.path.join(folder, "testlog-first.json")
    if os.path.exists(first_path):
        first = read_log(first_path)
        for name in sorted(n for n in tests if count(first[n])[1] and not count(tests[n])[1]):
            print(f"unsteady: {name} ({folder}) failed once and passed when it ran again")
        tests = first | tests
    counts = {name: count(test) for name, test in tests.items()}
    for name in sorted(n for n in counts if counts[n][1]):
        print_failed(name, folder, tests[name])
    return counts


def main(arguments):
    if arguments[0] == "--failed":
        # meson prints "project:suite / name" and takes the name
        print("\n".join(name.split(" / ")[-1] for name, test in read_log(arguments[1]).items() if count(test)[1]))
        return 0
    total = [0, 0, 0]
    for folder in arguments:
        for counts in read_folder(folder).values():
            total = [a + b for a, b in zip(total, counts)]
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
