"""The tests of a build, run one at a time with a mutant switched on or with none."""
import collections
import ctypes
import json
import mmap
import os
import re
import resource
import signal
import subprocess
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
N_BYTES = 65536  # KVC_MUTANTS_MAX
SKIPPED = 77
# The form of the sources is another matter, and a copy of them is none.
NOT_RUN = {"form"}

KEPT = "with-mutants.json"
MARK = b"kvc_mutant_number"  # a symbol of every file with mutants (mutant.h)

# source: of the program, from the root on; may_reach: whether a program that the test starts has mutants
Test = collections.namedtuple("Test", "name command env workdir source may_reach", defaults=(True,))
# status: passed, skipped, failed, late; cpu_s: of all processes of the test
Outcome = collections.namedtuple("Outcome", "status seconds cpu_s output")


def introspect(build, what):
    """What `meson introspect --WHAT` prints, which meson keeps in a file: a process of it takes a second, or a minute beside others."""
    with open(os.path.join(build, "meson-info", f"intro-{what}.json"), encoding="utf-8") as file:
        return json.load(file)


def sources_of(build):
    """{path of a program: the file that has its tests, from the root of the sources on}."""
    found = {}
    for target in introspect(build, "targets"):
        of_target = [s for group in target["target_sources"] for s in group.get("sources", ())
                     if os.path.basename(s).startswith("test_")]
        if target["type"] == "executable" and of_target:
            found[target["filename"][0]] = "tests/" + of_target[0].rpartition("/tests/")[2]
    return found


def with_mutants(build):
    """Ids of the targets whose files have mutants; None if a shared library has some, which any program may load.

    The programs are gigabytes, so the result is kept until the build changes (build.Copy.compile_all).
    """
    kept = os.path.join(build, KEPT)
    if not os.path.exists(kept):
        found = look_for_mutants(build)
        with open(kept, "w", encoding="utf-8") as file:
            json.dump(None if found is None else sorted(found), file)
    with open(kept, encoding="utf-8") as file:
        found = json.load(file)
    return None if found is None else set(found)


def look_for_mutants(build):
    """See with_mutants()."""
    found = set()
    for target in introspect(build, "targets"):
        if target["type"] not in ("executable", "shared library", "shared module"):
            continue
        for path in filter(os.path.exists, target["filename"]):  # some are built only when asked for
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data.find(MARK) < 0:
                    continue
            if target["type"] != "executable":
                return None
            found.add(target["id"])
    return found


def tests_of(build):
    """Every test of the folder @build, as meson describes it."""
    described, sources, marked = introspect(build, "tests"), sources_of(build), with_mutants(build)
    times = collections.Counter(test["name"] for test in described)
    found = []
    for test in described:
        suites = {s.split(":")[-1] for s in test["suite"]}
        if NOT_RUN & suites:
            continue
        name = test["name"] if times[test["name"]] == 1 else f"{test['name']} ({' '.join(sorted(suites))})"
        found.append(Test(name, test["cmd"], test["env"], test["workdir"] or build, sources.get(test["cmd"][0], ""),
                          marked is None or not marked.isdisjoint(test["depends"])))
    return found


def that_may_leak(test):
    """@test with the detection of leaks switched off, also in its children."""
    return test._replace(env={**test.env, "LSAN_OPTIONS": "detect_leaks=0"})


def begin_worker():
    """Makes this process the parent of what its tests leave behind, and ends them all when its own parent ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, end_worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end_worker(_number, _frame):
    end_children()
    os._exit(1)


def run(test, limit_s, mutant=None, reached=None):
    """Runs @test for at most @limit_s seconds, with @mutant (a number) switched on. @reached: see mutant.h."""
    env = dict(os.environ, **test.env, KVC_TEST_STOP="1")
    if mutant is not None:
        env["KVC_MUTANT"] = str(mutant)
    if reached is not None:
        with open(reached, "wb") as file:
            file.truncate(N_BYTES)
        os.chmod(reached, 0o666)  # tests become other users
        env["KVC_MUTANT_REACHED"] = reached
    started, cpu_before = time.monotonic(), cpu_of_children()
    with subprocess.Popen(test.command, env=env, cwd=test.workdir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as child:
        try:
            output, _ = child.communicate(timeout=limit_s)
            status = {0: "passed", SKIPPED: "skipped"}.get(child.returncode, "failed")
        except subprocess.TimeoutExpired:
            output, status = b"", "late"
            os.killpg(child.pid, signal.SIGKILL)
        end_children()
    return Outcome(status, time.monotonic() - started, cpu_of_children() - cpu_before, output.decode(errors="replace"))


def cpu_of_children():
    """Seconds of CPU of all processes that ended as children of this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def end_children():
    """Ends every process that a test left behind, and their children, which this process adopts."""
    while True:
        children = []
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                children += [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def reached_by(path):
    """Numbers of the mutants whose places ran, from the file that run() was given."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [match.start() for match in re.finditer(b"\x01", data)]


def distance(test, path):
    """How far @test is from the file @path: 0 it tests this file, 1 its room, 2 its folder, 3 another."""
    room, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    program = os.path.splitext(os.path.basename(test.source))[0] + "_"
    if program.startswith(f"test_{stem}_"):
        return 0
    if os.path.dirname(test.source) == f"tests/unit/{room}":
        return 1
    return 2 if test.source.startswith(f"tests/unit/{room.split('/', 1)[0]}/") else 3
