#!/usr/bin/env python3
"""The ladder: situations of a cache, one after another, and for each whether the answers are right.

    ladder.py [--engine NAME]... [--model NAME]... [--row TEXT]... [--short] [--list]

Prints a table in Markdown per engine and model, and exits with 1 if an answer was wrong or a cache found another number of tokens than
it must. README.md says what is compared with what. The environment is that of engines.py; nothing else of the machine is used.
"""
import argparse
import math
import os
import platform
import sys
import tempfile
import time

import engines
import kvcobra
from ladder_daemon import KeptDaemon
from ladder_models import MODELS
from ladder_subjects import SUBJECTS
from ladder_workers import CHUNK, preload

CANCELLED = {"short": 10, "long": 100}
CHUNKS = {"short": (1, 2, 3, 7), "long": (*range(1, 201),)}
BOUNDARIES = {"short": (1, 2), "long": (1, 2, 3, 4, 5, 8, 16)}
WAIT_S = 60

ROWS = {}


def row(name, what, needs=()):
    """@needs: what the engine must have, of Subject.has."""
    def add(function):
        ROWS[name] = (what, frozenset(needs), function)
        return function
    return add


class Ladder:
    """What rows work with. Counts: requests, wrong answers, tokens that were found, and those that had to be."""

    def __init__(self, subject, form, folder):
        self.subject, self.form, self.folder = subject, form, folder
        self.daemon, self._held, self._workers = None, [], {}
        self.begin_row()

    def begin_row(self):
        self.n_requests = self.n_wrong = self.found = self.n_unexpected = 0
        self.largest, self.note = 0.0, ""

    # ---- what is under test ----

    @property
    def first(self):
        return self.worker("first")

    @property
    def second(self):
        return self.worker("second")

    def worker(self, name):
        """A process with the engine, which goes on when its daemon does not."""
        if name not in self._workers:
            self._workers[name] = self.subject.worker(self.daemon and self.daemon.socket)
        return self._workers[name]

    def start(self, *options):
        """An empty cache: a daemon with @options at the socket that all workers know, or a new process of an engine that has a cache of its own."""
        self.release()
        if not self.subject.has("daemon"):
            self._end_workers()
            self.subject.has_small_cache = bool(options)
            return
        options = [*(options or ("--pool-bytes=1G",)), *self.subject.options, "--arena-bytes=64M", "--quota-bytes=8G", f"--state-dir={tempfile.mkdtemp(dir=self.folder)}"]
        if self.daemon is None:
            self.daemon = KeptDaemon(*options)
        else:
            if self.daemon.process.poll() is None:
                self.stop()
            self.daemon.forget()
            self.daemon.options = ("--keep-pool=yes", *options)
            self.daemon.start()
        self.activate(self.subject.tables)
        self.subject.use(self.subject.tables)
        self.reconnect()

    def stop(self):
        self.daemon.process.terminate()
        assert self.daemon.process.wait(WAIT_S) == 0, self.daemon.log()

    def start_again(self):
        """The daemon that ended, with its tables."""
        self.daemon.start()
        self.reconnect()

    def activate(self, tables):
        for table in tables:
            self.daemon.command("table", "stage", table)
        if not tables:
            return
        self.daemon.command("table", "activate", *tables, "--yes")

    def reconnect(self):
        """Returns when all workers share again: a worker that lost the daemon tries again after some seconds."""
        for worker in self._workers.values():
            probe, end = {"tokens": self.subject.model.prompt(3 * CHUNK)}, time.monotonic() + WAIT_S
            while worker.call("ask", [probe])[0]["found"] == 0:
                if time.monotonic() > end:
                    raise TimeoutError(f"a worker did not share again within {WAIT_S} s after kvcobrad was started: {self.daemon.log()[-600:]}")

    def _end_workers(self):
        for worker in self._workers.values():
            worker.close()
        self._workers = {}

    def close(self):
        self.release()
        self._end_workers()
        if self.daemon is not None:
            self.daemon.__exit__(None)

    # ---- leases of this process ----

    def hold(self, prompts):
        """Leases the pages of prompts until release(), as a client does that is slow. Returns the tokens of each."""
        client = kvcobra.Client(self.daemon.socket)
        sequences = [[kvcobra.Sequence(model, **self.subject.sequence) for model in self.subject.opened(client)] for _ in prompts]
        self._held.append((client, sequences))
        return [min(sequence.match(tokens) for sequence in groups) for groups, tokens in zip(sequences, prompts)]

    def release(self):
        for client, sequences in self._held:
            for groups in sequences:
                for sequence in groups:
                    sequence.close()
            client.close()
        self._held = []

    # ---- questions ----

    def prompts(self, *lengths):
        return [self.subject.model.prompt(n) for n in lengths]

    def ask(self, worker, prompts, found=None, salt="", at_once=False, cancelled=()):
        """@found: tokens; "whole": what is found of a prompt that was asked; "inside": of the beginning of a longer one; None: anything."""
        requests = [{"tokens": tokens, "salt": salt} for tokens in prompts]
        if at_once:
            worker.send("ask", requests, cancelled)
            return lambda: self.judge(requests, worker.receive(), found)
        for request in requests:
            self.judge([request], worker.call("ask", [request]), found)
        return None

    def judge(self, requests, answers, found):
        for request, answer in zip(requests, answers):
            must = found
            if found == "whole":
                must = self.subject.whole(len(request["tokens"]))
            elif found == "inside":
                must = (len(request["tokens"]) - 1) // CHUNK * CHUNK
            wrong, difference = self.subject.judge(request, answer)
            self.n_requests += 1
            self.n_wrong += wrong
            self.found += answer["found"]
            self.n_unexpected += must is not None and answer["found"] != must
            if must is not None and answer["found"] != must:
                self.note += f"{answer['found']} tokens were found of {len(request['tokens'])}, not {must}; "
            self.largest = max(self.largest, difference)


# ---- rows ----

SIZES = 70, 200, 330, 449


@row("control", "without a cache, each prompt twice in two processes")
def control(ladder):
    for tokens in ladder.prompts(*SIZES):
        request = {"tokens": tokens}
        ladder.judge([request], [ladder.subject.again(request)], 0)


@row("cold", "an empty cache")
def cold(ladder):
    ladder.start()
    ladder.ask(ladder.first, ladder.prompts(*SIZES), 0)


@row("warm", "a second process takes what the first one computed, twice", ["processes"])
def warm(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    for _ in range(2):
        ladder.ask(ladder.second, prompts, "whole")


@row("same process", "the process that computed the prompts asks again, twice")
def same_process(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    for found in (0, "whole", "whole"):
        ladder.ask(ladder.first, prompts, found)


@row("A, B, A", "B has the beginning of A and another end; each is asked three times in turn")
def a_b_a(ladder):
    ladder.start()
    a, b, other = ladder.prompts(449, 449, 449)
    b = a[:4 * CHUNK] + b[4 * CHUNK:]
    ladder.ask(ladder.first, [a], 0)
    ladder.ask(ladder.first, [b], 4 * CHUNK)
    for prompts in ([a], [b], [other], [a], [b], [a]):
        ladder.ask(ladder.first, prompts, 0 if prompts == [other] else "whole")


@row("four at once, cold", "the same prompt four times at once in an empty cache, then four prompts with one beginning; all are asked again")
def four_at_once(ladder):
    ladder.start()
    same = ladder.prompts(330) * 4
    first, *ends = ladder.prompts(330, 200, 201, 202, 203)
    parting = [first[:130] + end for end in ends]
    workers = [ladder.first, ladder.second] if ladder.subject.has("processes") else [ladder.first]
    for prompts in (same, parting):
        share = len(prompts) // len(workers)
        for receive in [ladder.ask(worker, prompts[i * share:(i + 1) * share], at_once=True) for i, worker in enumerate(workers)]:
            receive()
        ladder.ask(workers[-1], prompts, "whole")


@row("cancelled", "requests that are dropped in the middle, beside neighbours which are answered; then all are asked")
def cancelled(ladder):
    ladder.start()
    neighbours = ladder.prompts(330, 449)
    n = CANCELLED[ladder.form]
    dropped = ladder.prompts(*[200 + 5 * (i % 40) for i in range(min(n, 10))])
    for i in range(n):
        victim = {"tokens": dropped[i % len(dropped)]}
        half = {"tokens": neighbours[i % 2][:CHUNK * 3] + dropped[i % len(dropped)]}
        ladder.ask(ladder.first, neighbours, at_once=True, cancelled=[(victim, i % 5), (half, 1 + i % 3)])()
    ladder.ask(ladder.first, neighbours, "whole")
    ladder.ask(ladder.first, dropped)


@row("killed neighbour", "a process of the engine is killed in the middle of a prompt, another one asks for it", ["processes"])
def killed_neighbour(ladder):
    ladder.start()
    prompts = ladder.prompts(449, 449, 449)
    for tokens in prompts:
        victim = ladder.subject.worker(ladder.daemon.socket)
        victim.call("ask", [{"tokens": tokens[:130]}])
        victim.send("ask", [{"tokens": tokens}])
        victim.kill()
        ladder.ask(ladder.first, [tokens])
        ladder.ask(ladder.first, [tokens], "whole")


@row("restarted", "kvcobrad ends, and then is killed; each time the next one gets its pool, and the engines go on", ["daemon"])
def restarted(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    for end in (ladder.stop, ladder.daemon.kill):
        end()
        ladder.start_again()
        ladder.ask(ladder.second, prompts, "whole")
        ladder.ask(ladder.first, prompts, "whole")


@row("restarted, empty", "kvcobrad ends with its pages and starts again; the engines stay", ["daemon"])
def restarted_empty(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    ladder.stop()
    ladder.daemon.forget()
    ladder.start_again()
    ladder.ask(ladder.second, prompts, 0)
    ladder.ask(ladder.first, prompts, "whole")


@row("killed", "kvcobrad is killed; the engines ask without it, and with the next one", ["daemon"])
def killed(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    ladder.daemon.kill()
    ladder.daemon.forget()
    if ladder.subject.has("alone"):
        ladder.ask(ladder.first, prompts, 0)
    ladder.start_again()
    ladder.ask(ladder.second, prompts, 0)
    ladder.ask(ladder.first, prompts, "whole")


@row("evicted", "a cache with room for a quarter of the prompts; all are asked again, the newest first, once more, and eight at once", ["evicts"])
def evicted(ladder):
    ladder.start(*ladder.subject.small_pool)
    prompts = ladder.prompts(*[200 + i for i in range(ladder.subject.model.n_flood[ladder.form])])
    ladder.ask(ladder.first, prompts, 0)
    before = ladder.found
    for again in (prompts[::-1], prompts):  # the newest first: some of them are there
        ladder.ask(ladder.first, again)
    taken = ladder.found - before
    ladder.ask(ladder.first, prompts[:8], at_once=True)()
    if not 0 < taken < 2 * sum(ladder.subject.whole(len(tokens)) for tokens in prompts):
        ladder.n_unexpected += 1
        ladder.note += "nothing or everything was evicted; "


@row("pool full", "other clients hold all pages: nothing can be published, and their pages are found", ["daemon"])
def pool_full(ladder):
    ladder.start(*ladder.subject.small_pool)
    held = []
    for i in range(ladder.subject.model.n_flood[ladder.form]):
        prompts = ladder.prompts(200 + i)
        ladder.ask(ladder.first, prompts, 0)
        if ladder.hold(prompts)[0] < ladder.subject.whole(len(prompts[0])):
            break
        held += prompts
    else:
        ladder.n_unexpected += 1
        ladder.note += "the pool did not get full; "
    later = ladder.prompts(200, 330)
    for _ in range(2):
        ladder.ask(ladder.first, later + prompts)
        ladder.ask(ladder.first, held[:4], "whole")
    ladder.note += f"{len(held)} prompts were held; "


@row("from disk", "all pages leave memory, and come from the disk", ["daemon"])
def from_disk(ladder):
    ladder.start("--pool-bytes=1G", *disk(ladder))
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    for _ in range(2):
        ladder.daemon.command("tier", "write")
        ladder.daemon.command("evict", "--yes")
        ladder.ask(ladder.second, prompts, "whole")


@row("restarted, from disk", "kvcobrad is ended, and then killed; its pages come from the disk", ["daemon"])
def restarted_from_disk(ladder):
    ladder.start("--pool-bytes=1G", *disk(ladder))
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    ladder.daemon.command("tier", "write")
    for end in (ladder.stop, ladder.daemon.kill):
        end()
        ladder.daemon.forget()
        ladder.start_again()
        ladder.ask(ladder.second, prompts, "whole")


@row("bytes of the disk changed", "every block of the disk's file gets a wrong bit: nothing is found, or what is right", ["daemon"])
def disk_changed(ladder):
    options = disk(ladder)
    ladder.start("--pool-bytes=1G", *options)
    prompts = ladder.prompts(*SIZES)
    ladder.ask(ladder.first, prompts, 0)
    ladder.daemon.command("tier", "write")
    ladder.daemon.command("evict", "--yes")
    n_changed = 0  # bits
    for folder, _, names in os.walk(options[0].partition("=")[2]):
        for name in names:
            with open(os.path.join(folder, name), "r+b") as file:
                for at in range(1001, os.fstat(file.fileno()).st_size, 4096):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 16]))
                    n_changed += 1
    ladder.n_unexpected += n_changed == 0
    ladder.ask(ladder.second, prompts, 0)
    ladder.ask(ladder.second, prompts, "whole")


@row("table swapped", "another table is activated and computed with, then the first one again", ["daemon", "tables"])
def table_swapped(ladder):
    ladder.start()
    prompts, model = ladder.prompts(*SIZES), ladder.subject.model
    ladder.ask(ladder.first, prompts, 0)
    for tables, found in ((model.second_tables, 0), (model.tables, "whole"), (model.second_tables, "whole")):
        ladder.activate(tables)
        ladder.subject.use(tables)
        ladder.ask(ladder.second, prompts, found)
        ladder.ask(ladder.first, prompts, "whole")


@row("salts", "the same prompts with three salts: each finds its own and no other's")
def salts(ladder):
    ladder.start()
    prompts = ladder.prompts(*SIZES)
    last = ladder.second if ladder.subject.has("processes") else ladder.first
    for salt in ("", "a", "b"):
        ladder.ask(ladder.first, prompts, 0, salt)
    for salt in ("b", "", "a"):
        ladder.ask(last, prompts, "whole", salt)
    ladder.ask(last, prompts, 0, "c")


@row("sizes", "lengths around the ends of chunks: 64 k - 1, 64 k, 64 k + 1; cold and again")
def sizes(ladder):
    ladder.start()
    last = ladder.second if ladder.subject.has("processes") else ladder.first
    lengths = [CHUNK * k + by for k in BOUNDARIES[ladder.form] for by in (-1, 0, 1)]
    prompts = ladder.prompts(*lengths)
    ladder.ask(ladder.first, prompts, 0)
    ladder.ask(last, prompts, "whole")


@row("1 to 200 chunks", "the beginnings of one prompt, each a token longer than so many chunks")
def chunks(ladder):
    ladder.start()
    last = ladder.second if ladder.subject.has("processes") else ladder.first
    numbers = [k for k in CHUNKS[ladder.form] if (k + 2) * CHUNK < ladder.subject.model.n_positions]
    numbers = numbers[::ladder.subject.model.stride[ladder.form]]
    text = ladder.prompts((numbers[-1] + 2) * CHUNK)[0]
    beginnings = [text[:k * CHUNK + 1] for k in numbers]
    ladder.subject.prepare(text, [len(tokens) for tokens in beginnings])
    ladder.ask(ladder.first, [text], 0)
    ladder.ask(last, beginnings, "inside")


def disk(ladder):
    """Options of a disk tier in a new folder."""
    return f"--disk-dir={tempfile.mkdtemp(dir=ladder.folder)}", "--disk-bytes=256M"


# ---- the table ----

def climb(subject, form, names):
    """Runs the rows of one engine and model. Returns whether all were right."""
    good, lines = True, []
    with tempfile.TemporaryDirectory(prefix="kvcobra-ladder-") as folder:
        ladder = Ladder(subject, form, folder)
        try:
            for name, (what, needs, function) in ROWS.items():
                if names and not any(text in name for text in names) or not all(map(subject.has, needs)):
                    continue
                ladder.begin_row()
                before, error = time.monotonic(), ""
                try:
                    function(ladder)
                except Exception as e:
                    error = f"{type(e).__name__}: {e}"[:2000].replace("\n", " ")
                passed = not (ladder.n_wrong or ladder.n_unexpected or error) and ladder.n_requests > 0
                good &= passed
                lines.append(f"| {name} | {what} | {ladder.n_requests} | {ladder.found} | {ladder.n_wrong} | {number(ladder.largest)} | "
                             f"{'right' if passed else '**wrong**'} {(ladder.note + error).rstrip('; ')[:400]} | {time.monotonic() - before:.0f} |")
                print(lines[-1], file=sys.stderr, flush=True)
        finally:
            ladder.close()
    print(f"### {subject.name}\n\n{subject.measure}\n\n| row | what was done | requests | tokens found | wrong | largest difference | | s |\n"
          "|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n", flush=True)
    return good


def number(difference):
    return "0" if difference == 0 else f"{difference:.1e}" if math.isfinite(difference) else "all"


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.partition(": ")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    return f"{len(os.sched_getaffinity(0))} cores of {name}, {time.strftime('%Y-%m-%d')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=list(SUBJECTS), help="all, if none is given")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="all, if none is given")
    parser.add_argument("--row", action="append", help="only rows whose name contains this")
    parser.add_argument("--short", action="store_true", help="fewer requests in each row")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name}: {what}" for name, (what, _, _) in ROWS.items()))
        return 0
    chosen = options.engine or list(SUBJECTS)
    print(f"{'Short' if options.short else 'Long'} ladder, {machine()}\n")
    good = True
    with tempfile.TemporaryDirectory(prefix="kvcobra-ladder-models-") as folder:
        preload(any(name.startswith("vllm") for name in chosen), os.path.join(folder, "log"))
        for model in options.model or MODELS:
            made = MODELS[model](os.path.join(folder, model))
            for engine in chosen:
                if engine in made.engines:
                    subject = SUBJECTS[engine](made)
                    try:
                        good &= climb(subject, "short" if options.short else "long", options.row)
                    finally:
                        subject.close()
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except engines.unittest.SkipTest as e:
        print(f"skipped: {e}")
        sys.exit(77)
