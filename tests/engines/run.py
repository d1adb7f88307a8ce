#!/usr/bin/env python3
"""Runs test files, two at a time and each in a session of its own, and adds up their cases.

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
import tempfile
import time
import unittest

JOBS = 2  # a file waits for programs that start half of its time
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


class Running:
    """A file that runs in a session of its own."""

    def __init__(self, path, timeout):
        self.path, self.timeout = path, timeout
        self.output = tempfile.TemporaryFile("w+", errors="replace")
        # two programs whose threads spin on the same cores, as torch's do, are ten times slower than with a thread each
        env = dict(os.environ)
        env.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // JOBS)))
        self.child = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--one", path], stdin=subprocess.DEVNULL,
                                      stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True, env=env)
        self.end_s = time.monotonic() + timeout

    def has_ended(self):
        return self.child.poll() is not None or time.monotonic() > self.end_s

    def finish(self):
        """(passed, failed, skipped); prints the output."""
        overdue = self.child.poll() is None
        end(self.child)
        self.child.wait()
        with self.output as output:
            output.seek(0)
            text = output.read()
        if overdue:
            text += f"\n{self.path} did not end within {self.timeout} s\n"
        print(f"== {os.path.relpath(self.path)}\n{text}", end="", flush=True)
        found = COUNTS.findall(text)
        passed, failed, skipped = map(int, found[-1]) if found else (0, 0, 0)
        if self.child.returncode != 0 and failed == 0:
            failed = 1
        return passed, failed, skipped


def run_files(paths, timeout):
    """Counts of all files; JOBS of them run at a time."""
    waiting, running, counts = list(paths), [], [(0, 0, 0)]
    try:
        while waiting or running:
            while waiting and len(running) < JOBS:
                running.append(Running(waiting.pop(0), timeout))
            time.sleep(0.1)
            for file in [f for f in running if f.has_ended()]:
                running.remove(file)
                counts.append(file.finish())
    finally:
        for file in running:
            end(file.child)
    return [sum(column) for column in zip(*counts)]


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments[:1] == ["--one"]:
        return run_one(arguments[1])
    timeout = 1800
    if arguments[:1] == ["--timeout"]:
        timeout = int(arguments[1])
        arguments = arguments[2:]
    total = run_files(arguments, timeout)
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
