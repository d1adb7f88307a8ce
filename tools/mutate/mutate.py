#!/usr/bin/env python3
"""Changes the sources in small ways and counts how many of the changes the tests notice. tools/mutate.sh runs it.

A mutation is one small mistake: another comparison, a check that is skipped, a call or an assignment that is left out, a
constant that is one larger, two statements in the other order. All are compiled into one copy of the sources, and an
environment variable switches on one (mutant.h). The build has the leak sanitizer, which costs no time: the sanitizer
build of check.sh would notice a leak too. The baseline runs every test that starts a program with mutants in it, with none
switched on, and records how long the tests take and which mutants each of them executes. Then every mutant meets the tests that execute it until one fails: the unit tests of
its file first, then the others, those first that noticed the most mutants per second of their time so far. So a mutant
that survives has passed the whole suite. Each mutant first meets the tests of its first half minute, so that most results
are there early.

A test counts if it fails twice at the same check; if it fails twice at different ones, or takes longer than its limit, it
must pass without the mutant, and in a third of the limit. With --sanitize those left after the first half minute meet
their shorter tests in a build with the address and undefined-behaviour sanitizers, which see leaks and reads beyond the
end, and only then the rest. Results are stored after each mutant, and the same command continues an interrupted run.
"""
import argparse
import collections
import concurrent.futures
import json
import math
import multiprocessing
import os
import random
import re
import shlex
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/form"))

# pylint: disable=wrong-import-position
import build as mutant_build
import places
import source
import tests as test_runs

LIMIT_FACTOR, LIMIT_EXTRA_S = 3, 5
BASELINE_LIMIT_S = 1200
FIRST_TESTS_S = 30
SANITIZERS = "-Db_sanitize=address,undefined"  # meson takes the last of two values
SANITIZED_TEST_S = 3      # longest test, without sanitizers, that is run with them
SANITIZED_FACTOR = 30     # of its time
# By how far a test is from the file of a mutant (tests.distance): the share of mutants that it notices, before it met any.
NOTICED_SHARE = 0.5, 0.2, 0.1, 0.05
# Tests that fail allocations and system calls: the leak sanitizer makes its own, and may hold its lock when a test forks.
WITHOUT_LEAK_SANITIZER = "^(alloc_memory|client_faults|daemon_faults)$"
START_S = 0.05            # what a test costs besides its own time


def arguments():
    parser = argparse.ArgumentParser(prog="mutate.sh", description="Count the small mistakes in the C sources that the tests notice.")
    parser.add_argument("--seed", default="1", help="draws the mutants (%(default)s)")
    parser.add_argument("--count", type=int, default=300, help="mutants over all folders (%(default)s)")
    parser.add_argument("--each", type=int, default=0, help="mutants in every folder, instead of --count over all")
    parser.add_argument("--now", default="", help="meet only mutants of files whose path has a match of this regular expression; "
                        "the others stay open")
    parser.add_argument("--folders", default=",".join(mutant_build.FOLDERS), help="%(default)s")
    parser.add_argument("--files", default="", help="only files whose path has a match of this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests and compilers at once (%(default)s)")
    parser.add_argument("--work", default="build-mutants", help="folder of the copy, its build and the results (%(default)s)")
    parser.add_argument("--meson", default="-Dcuda=disabled -Db_sanitize=leak -Db_lundef=false",
                        help="options of the build (%(default)s)")
    parser.add_argument("--sanitize", action="store_true", help="run the survivors in a build with sanitizers too")
    parser.add_argument("--without", default=WITHOUT_LEAK_SANITIZER,
                        help="tests to leave out, a regular expression of their names (%(default)s)")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes; the next call continues")
    parser.add_argument("--report", action="store_true", help="only print the results so far")
    return parser.parse_args()


def load(path, default=None):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default


def store(path, value):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    os.replace(path + ".new", path)


# ---- equivalent mutants ------------------------------------------------------------------------------------------

def equivalents():
    """Mutants that change nothing that a test could see: {(path, function, original, mutated): reason}."""
    found = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "equivalent.txt"), encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith("#")]
            if not lines:
                continue
            if len(lines) != 4:
                sys.exit(f"mutate: equivalent.txt: 4 lines expected, not: {block}")
            path, _, function = lines[0].partition(" ")
            found[(path, function, lines[1], lines[2])] = lines[3]
    return found


def key_of(place):
    return place.path, place.function, place.original, place.mutated


# ---- baseline ----------------------------------------------------------------------------------------------------

def baseline_of(work, all_tests, jobs):
    """{test: {"seconds", "reached"}} of the tests that pass without a mutant. A test that fails twice ends the program."""
    path = os.path.join(work, "baseline.json")
    done = load(path, {})
    os.makedirs(os.path.join(work, "reached"), exist_ok=True)
    for test in all_tests:
        if not test.may_reach:
            done.setdefault(test.name, {"seconds": 0, "leaks": False, "reached": None})
    left = [t for t in all_tests if t.name not in done]
    failed = {}
    with pool_of(jobs) as pool:
        runs = {pool.submit(baseline_run, t, os.path.join(work, "reached", t.name)): t for t in left}
        for n, future in enumerate(concurrent.futures.as_completed(runs), 1):
            test, (outcome, reached, leaks) = runs[future], future.result()
            progress(f"baseline: {n} of {len(left)}: {test.name} {outcome.status} in {outcome.seconds:.1f} s")
            if outcome.status in ("failed", "late"):
                failed[test.name] = outcome.output
                continue
            done[test.name] = {"seconds": outcome.seconds, "leaks": leaks,
                               "reached": reached if outcome.status == "passed" else None}
            store(path, done)
    if failed:
        for name, output in sorted(failed.items()):
            print(f"---- {name}\n{output[-4000:]}")
        sys.exit(f"mutate: fails without a mutant: {' '.join(sorted(failed))}")
    return done


def baseline_run(test, path):
    """A test that leaks on purpose, because its process ends, runs once more without the detection of leaks, then always."""
    outcome = test_runs.run(test, BASELINE_LIMIT_S, reached=path)
    leaks = outcome.status == "failed" and "LeakSanitizer" in outcome.output
    if outcome.status in ("failed", "late"):
        outcome = test_runs.run(test_runs.that_may_leak(test) if leaks else test, BASELINE_LIMIT_S, reached=path)
    return outcome, test_runs.reached_by(path), leaks


def as_measured(all_tests, baseline):
    """The tests as the baseline ran them."""
    return [test_runs.that_may_leak(t) if baseline.get(t.name, {}).get("leaks") else t for t in all_tests]


def pool_of(jobs):
    """Processes, since each adopts and ends what its tests leave behind."""
    return concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), test_runs.begin_worker)


# ---- mutants -----------------------------------------------------------------------------------------------------

def limit_of(seconds, factor=LIMIT_FACTOR):
    """How long a test may take that takes @seconds without a mutant."""
    return factor * seconds + LIMIT_EXTRA_S


def meet(number, ordered):
    """Runs @ordered, [(test, its limit in seconds)], with mutant @number until one notices it."""
    doubts, met, cpu_before = [], [], test_runs.cpu_of_children()
    noticed = how = None
    for test, limit_s in ordered:
        outcome = test_runs.run(test, limit_s, mutant=number)
        met.append(test.name)
        if outcome.status in ("passed", "skipped"):
            continue
        noticed, how = (test.name, last_line(outcome)) if is_noticed(test, limit_s, number, outcome) else (None, None)
        if noticed:
            break
        doubts.append(test.name)
    result = {"noticed": noticed, "met": met, "doubts": doubts, "cpu_s": round(test_runs.cpu_of_children() - cpu_before, 2)}
    return {**result, "how": how} if noticed else result


def is_noticed(test, limit_s, number, first):
    """Whether the test fails because of the mutant, and not because the machine is busy."""
    if first.status == "failed":
        second = test_runs.run(test, limit_s, mutant=number)
        if second.status == "failed" and last_line(first) == last_line(second):
            return True
        return second.status not in ("passed", "skipped") and test_runs.run(test, BASELINE_LIMIT_S).status == "passed"
    without = test_runs.run(test, BASELINE_LIMIT_S)
    if without.status != "passed":
        return False
    longer_s = limit_of(without.seconds)
    return longer_s <= limit_s or test_runs.run(test, longer_s, mutant=number).status in ("failed", "late")


def last_line(outcome):
    """The line that says why a test failed, as far as it can be told."""
    if outcome.status == "late":
        return f"longer than {outcome.seconds:.0f} s"
    lines = [line for line in outcome.output.split("\n") if line.strip()]
    telling = [line for line in lines if re.search(r"ERROR|FAILED|^\s+\d+\. |runtime error|Assertion", line)]
    return (telling or lines or [""])[0].strip()[:200]


class Campaign:
    """The mutants of a run, what the baseline measured, and the results so far."""

    def __init__(self, work, mutants, baseline, options):
        self.work, self.mutants, self.baseline, self.options = work, mutants, baseline, options
        self.path = os.path.join(work, "results.json")
        self.results = load(self.path, {})
        self.known = equivalents()
        self.met_by, self.noticed_by = collections.Counter(), collections.Counter()
        for result in self.results.values():
            self.count(result)
        self.end = time.monotonic() + options.minutes * 60 if options.minutes else None
        self.reaching = collections.defaultdict(list)  # by mutant: names of the tests that execute its place
        for name, measured in baseline.items():
            for number in measured["reached"] or ():
                self.reaching[number].append(name)

    def tests_for(self, number, place, by_name):
        """The tests of @by_name that execute the place and that the mutant has not met, in the order to run them."""
        met = set(self.results.get(str(number), {}).get("met", ()))
        names = [name for name in self.reaching[number] if name in by_name and name not in met]
        return sorted(names, key=lambda name: self.rank(by_name[name], place))

    def rank(self, test, place):
        """Tests of the file come first, then those that notice the most mutants per second, as far as is known."""
        distance = test_runs.distance(test, place.path)
        n_noticed, n_met = self.noticed_by[test.name], self.met_by[test.name]
        share = (n_noticed + NOTICED_SHARE[distance]) / (n_met + 1)
        return distance > 0, (self.baseline[test.name]["seconds"] + START_S) / share

    def run(self, all_tests, seconds):
        """The mutants that no test has noticed yet, with their tests of the first @seconds that they have not met."""
        by_name = {t.name: t for t in all_tests}
        left = [(number, place) for number, place in self.of_now()
                if self.results.get(str(number), {"unfinished": True}).get("unfinished")]

        def ordered(number, place):
            first = self.first_of(self.tests_for(number, place, by_name), seconds - self.seconds_of(number))
            return [(by_name[n], limit_of(self.baseline[n]["seconds"])) for n in first]

        self.run_each(left, ordered, lambda number, place, result: self.add(number, place, result, by_name))

    def of_now(self):
        """The mutants that this call is about."""
        return [(number, place) for number, place in self.mutants
                if key_of(place) not in self.known and re.search(self.options.now, place.path)]

    def seconds_of(self, number):
        """How long the tests that mutant @number has met take."""
        return sum(self.baseline[name]["seconds"] for name in self.results.get(str(number), {}).get("met", ()))

    def first_of(self, names, seconds):
        """Those of the tests @names that take @seconds together; one if nothing was met yet."""
        total, first = 0, []
        for name in names:
            total += self.baseline[name]["seconds"]
            if total > seconds and (first or seconds < FIRST_TESTS_S):
                break
            first.append(name)
        return first

    def add(self, number, place, result, by_name):
        """Adds the result of further tests."""
        self.count(result)
        before = self.results.get(str(number), {"met": [], "doubts": [], "cpu_s": 0})
        for part in ("met", "doubts", "cpu_s"):
            result[part] = before[part] + result[part]
        if "sanitized" in before:
            result["sanitized"] = before["sanitized"]
        self.results[str(number)] = result
        if not result["noticed"] and self.tests_for(number, place, by_name):
            result["unfinished"] = True

    def count(self, result):
        """Counts which tests met and noticed a mutant: their order depends on it."""
        self.met_by.update(result["met"])
        if result["noticed"]:
            self.noticed_by[result["noticed"]] += 1

    def run_sanitized(self, all_tests):
        """Those left with the shorter tests, @all_tests of the build with sanitizers."""
        by_name = {t.name: t for t in all_tests if self.baseline.get(t.name, {"seconds": math.inf})["seconds"] <= SANITIZED_TEST_S}
        left = []
        for number, place in self.of_now():
            result = self.results.get(str(number))
            if result and not result["noticed"] and "sanitized" not in result:
                left.append((number, place))

        def ordered(number, place):
            names = sorted((n for n in self.reaching[number] if n in by_name), key=lambda n: self.rank(by_name[n], place))
            return [(by_name[n], limit_of(self.baseline[n]["seconds"], SANITIZED_FACTOR)) for n in names]

        self.run_each(left, ordered, self.add_sanitized)

    def add_sanitized(self, number, _place, result):
        """Adds the result of tests with sanitizers; the tests without them stay as they were counted."""
        before = self.results[str(number)]
        before["sanitized"] = len(result["met"])
        for part in ("doubts", "cpu_s"):
            before[part] += result[part]
        if result["noticed"]:
            before["noticed"], before["how"] = result["noticed"], result["how"]
            before.pop("unfinished", None)

    def run_each(self, left, ordered, add):
        """Every mutant of @left, [(number, place)], with its tests, which @ordered chooses when its turn comes."""
        with pool_of(self.options.jobs) as pool:
            waiting, runs, n_done = random.Random(len(left)).sample(left, len(left)), {}, 0  # all folders from the start
            while waiting or runs:
                while waiting and len(runs) < self.options.jobs and not (self.end and time.monotonic() > self.end):
                    number, place = waiting.pop()
                    runs[pool.submit(meet, number, ordered(number, place))] = (number, place)
                if not runs:
                    break
                for future in concurrent.futures.wait(runs, return_when=concurrent.futures.FIRST_COMPLETED).done:
                    number, place = runs.pop(future)
                    result = future.result()
                    add(number, place, result)
                    store(self.path, self.results)
                    n_done += 1
                    progress(f"{n_done} of {len(left)}: {number} {place.path}:{place.line} {place.kind}: "
                             + (f"noticed by {result['noticed']}" if result["noticed"] else f"survived {len(result['met'])} tests"))


# ---- report ------------------------------------------------------------------------------------------------------

def report(mutants, results):
    known = equivalents()
    folders = collections.defaultdict(collections.Counter)
    survivors = []
    for number, place in mutants:
        result = results.get(str(number))
        count = folders[mutant_build.folder_of(place.path)]
        if key_of(place) in known:
            count["equivalent"] += 1
        elif result is None:
            count["open"] += 1
        elif result["noticed"]:
            count["noticed"] += 1
        elif "unfinished" in result:
            count["open"] += 1
            survivors.append((number, place, result))
        else:
            count["survived"] += 1
            survivors.append((number, place, result))
    print("| folder | mutants | noticed | survived | equivalent | open | rate |\n|---|---|---|---|---|---|---|")
    total = collections.Counter()
    for folder, count in sorted(folders.items()):
        total.update(count)
        print(row(folder, count))
    print(row("all", total))
    print("\nSurvivors, and those that have not met all tests:")
    for number, place, result in survivors:
        reach = f"passed {len(result['met'])} tests" if result["met"] else "no test executes it"
        reach += " so far" if "unfinished" in result else ""
        print(f"{number} {place.path}:{place.line} {place.function}() {place.kind}, {reach}\n    {place.original}\n    -> {place.mutated}")
    spent = sum(r["cpu_s"] for r in results.values())
    print(f"\nCPU time: {spent / max(len(results), 1):.0f} s for each of {len(results)} mutants, {spent / 60:.0f} min in all")
    doubtful = collections.Counter(name for r in results.values() for name in r["doubts"])
    if doubtful:
        print("\nTests that failed once and not again:", ", ".join(f"{name} ({n})" for name, n in doubtful.most_common()))


def row(name, count):
    judged = count["noticed"] + count["survived"]
    rate = f"{100 * count['noticed'] / judged:.0f} %" if judged else "–"
    return (f"| {name} | {sum(count.values())} | {count['noticed']} | {count['survived']} | {count['equivalent']} "
            f"| {count['open']} | {rate} |")


def progress(text):
    print(f"mutate: {text}", file=sys.stderr, flush=True)


def tests_of(work, folder, options):
    found = test_runs.tests_of(os.path.join(work, folder))
    return [t for t in found if not options.without or not re.search(options.without, t.name)]


def main():
    options = arguments()
    work = os.path.abspath(options.work)
    source.root()
    os.makedirs(work, exist_ok=True)
    asked = {"seed": options.seed, "count": options.count, "each": options.each, "folders": options.folders, "files": options.files, "meson": options.meson}
    path = os.path.join(work, "mutants.json")
    stored = load(path)
    if stored and stored["asked"] != asked:
        sys.exit(f"mutate: {work} holds another run ({stored['asked']}): name another folder with --work, or remove mutants.json, "
                 "baseline.json and results.json there")
    if not stored:
        progress("choosing and compiling")
        mutants = mutant_build.build(os.getcwd(), work, options.folders.split(","), options.files, options.count,
                                     options.each, options.seed, shlex.split(options.meson), options.jobs)
        stored = {"asked": asked, "mutants": [[n, *p] for n, p in mutants]}
        store(path, stored)
    mutants = [(m[0], places.Place(*m[1:])) for m in stored["mutants"]]
    if not options.report:
        all_tests = tests_of(work, "build", options)
        baseline = baseline_of(work, all_tests, options.jobs)
        campaign = Campaign(work, mutants, baseline, options)
        all_tests = as_measured(all_tests, baseline)
        campaign.run(all_tests, FIRST_TESTS_S)
        if options.sanitize:
            progress("building with sanitizers")
            mutant_build.Copy(os.getcwd(), work, options.jobs, "build-sanitize").build_all([*shlex.split(options.meson), SANITIZERS])
            campaign.run_sanitized(tests_of(work, "build-sanitize", options))
        campaign.run(all_tests, math.inf)
    report(mutants, load(os.path.join(work, "results.json"), {}))


if __name__ == "__main__":
    main()
