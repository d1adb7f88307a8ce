#!/usr/bin/env python3
"""Runs test files one after another, each in a session of its own, and adds up their cases.

    run.py [--timeout SECONDS] FILE...       the last line is "N passed, N failed, N skipped"; exit status 1 if a case failed
    run.py --one FILE                        one file, in this process

Each file is a module of unittest. A file that exceeds its time, or ends without a count, is one failure more. When a file has
ended, what its processes started is ended too.
"""
import importlib.util
import os
import re
import signal
import subprocess
import sys
import unittest

SKIPPED = 77  # exit status of a test program that cannot run
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)


class Result(unittest.TextTestResult):
    n_passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.n_passed += 1


def load(path):
    folder, name = os.path.split(os.path.abspath(path))
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(os.path.splitext(name)[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def run_one(path):
    """Exit status of a test file; its last line counts the cases."""
    try:
        tests = load(path)
    except unittest.SkipTest as e:
        print(f"skipped: {e}\n0 passed, 0 failed, 1 skipped")
        return 0
    except SystemExit as e:
        if e.code != SKIPPED:
            raise
        print("0 passed, 0 failed, 1 skipped")  # the file said why
        return 0
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(tests)
    # subtests that failed belong to one case
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    print(f"{result.n_passed} passed, {len(failed)} failed, {len(result.skipped)} skipped", flush=True)
    return 1 if failed else 0


def end(child):
    """Kills the processes of the child's session, in whatever process group they are."""
    members = [child.pid]
    while members:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        members = session_members(child.pid)


def session_members(session):
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, _, _, member_of = file.read().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if int(member_of) == session and state not in "ZX":
            members.append(int(name))
    return members


def run_file(path, timeout):
    """(passed, failed, skipped) of a file; prints its output when it has ended."""
    print(f"== {os.path.relpath(path)}", flush=True)
    child = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--one", path], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             start_new_session=True)
    try:
        text, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(child)
        text, _ = child.communicate()
        text += f"\n{path} did not end within {timeout} s\n"
    finally:
        end(child)
    print(text, end="", flush=True)
    found = COUNTS.findall(text)
    passed, failed, skipped = map(int, found[-1]) if found else (0, 0, 0)
    if child.returncode != 0 and failed == 0:
        failed = 1
    return passed, failed, skipped


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments[:1] == ["--one"]:
        return run_one(arguments[1])
    timeout = 1200
    if arguments[:1] == ["--timeout"]:
        timeout = int(arguments[1])
        arguments = arguments[2:]
    total = [sum(counts) for counts in zip((0, 0, 0), *(run_file(path, timeout) for path in arguments))]
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
