"""A copy of the sources with every mutant compiled in: chooses the places, writes the copy and builds it."""
import collections
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys

import places
import source
import tests

FOLDERS = ("base", "alloc", "proto", "gpu", "client", "daemon", "mover", "cluster", "tools", "lab")
# Programs of the build and of the tests, and code that only a compiler for GPUs builds.
NOT_MUTATED = re.compile(r"gpu/cuda/|client/python/|daemon/man/|.*/main\.c|.*_table\.c")
SPARE = 1.5  # some places do not compile


def folder_of(path):
    return path.split("/", 1)[0]


def files_of(folders):
    """Files whose code is mutated: C files, and the headers that hold the loops of each instruction set."""
    return [p for p in source.c_files(folders) if not NOT_MUTATED.match(p)
            and (p.endswith(".c") or source.PER_INSTRUCTION_SET.fullmatch(p))]


def choose(folders, files, count, each, seed):
    """Places for @count mutants and some spare ones, by folder, in the order in which they are drawn.

    @files: only files whose path has a match of this regular expression; every folder must have one. A folder's share
    grows with the square root of its lines: by its lines themselves, two folders would have no share. @each: that many in
    every folder instead.
    """
    chosen = {}
    n_lines, found = {}, {}
    for folder in folders:
        paths = [p for p in files_of([folder]) if re.search(files, p)]
        if not paths:
            sys.exit(f"mutate: {folder}/ has no file to change that matches {files!r}: name other folders or files")
        texts = {p: open(p, encoding="utf-8").read() for p in paths}
        n_lines[folder] = sum(t.count("\n") for t in texts.values())
        found[folder] = [place for p in paths for place in places.places_of(p, texts[p])]
    total = sum(math.sqrt(n) for n in n_lines.values())
    for folder in folders:
        wanted = each or max(1, round(count * math.sqrt(n_lines[folder]) / total))
        draw = random.Random(f"{seed} {folder}")
        chosen[folder] = (wanted, drawn(found[folder], math.ceil(wanted * SPARE), draw))
    return chosen


def drawn(found, n, draw):
    """@n places of @found that share no line. Kinds are drawn by their weights, then places of the kind alike."""
    by_kind = collections.defaultdict(list)
    for place in found:
        by_kind[place.kind].append(place)
    for of_kind in by_kind.values():
        draw.shuffle(of_kind)
    taken, lines = [], set()
    while len(taken) < n and by_kind:
        kinds = sorted(by_kind)
        kind = draw.choices(kinds, [places.WEIGHTS[k] for k in kinds])[0]
        place = by_kind[kind].pop()
        if not by_kind[kind]:
            del by_kind[kind]
        covered = {(place.path, line) for line in range(place.line - 1, place.line + place.original.count("\n") + 2)}
        if not covered & lines:
            lines |= covered
            taken.append(place)
    return taken


def changed(text, mutants, header):
    """@text with @mutants, which are [(number, place)] of one file, compiled in."""
    parts, at = [f'#include "{header}"\n#line 1\n'], 0
    for number, place in sorted(mutants, key=lambda m: m[1].start):
        parts += [text[at:place.start], place.before.replace("@", str(number)), text[place.start:place.end],
                  place.after.replace("@", str(number))]
        at = place.end
    return "".join(parts) + text[at:]


class Copy:
    """The folders WORK/source, a copy of the checkout, and WORK/@build_folder, where it is built."""

    def __init__(self, root, work, jobs, build_folder="build"):
        self.root, self.work, self.jobs = root, work, jobs
        self.source, self.build = os.path.join(work, "source"), os.path.join(work, build_folder)
        self.header = os.path.join(self.source, "tools/mutate/mutant.h")

    def copy(self):
        """Copies the files of the checkout. A file that did not change keeps its time, and is not compiled again."""
        listed = source.git("ls-files", "--cached", "--others", "--exclude-standard")
        wanted = {p for p in listed.split("\n") if p and os.path.isfile(p)}
        for path in wanted:
            with open(path, "rb") as file:
                self.write(path, file.read(), os.stat(path).st_mode)
        for folder, _, names in os.walk(self.source):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.source) not in wanted:
                    os.unlink(path)

    def write(self, path, data, mode=0o644):
        target = os.path.join(self.source, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            with open(target, "rb") as file:
                if file.read() == data:
                    return
        except FileNotFoundError:
            pass
        with open(target, "wb") as file:
            file.write(data)
        os.chmod(target, mode & 0o777)

    def inject(self, mutants):
        """Writes the files that @mutants, [(number, place)], change."""
        by_path = collections.defaultdict(list)
        for number, place in mutants:
            by_path[place.path].append((number, place))
        for path, of_path in by_path.items():
            with open(path, encoding="utf-8") as file:
                self.write(path, changed(file.read(), of_path, self.header).encode())

    def set_up(self, arguments):
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            run(["meson", "setup", "--buildtype=debugoptimized", "-Dtests=enabled", *arguments, self.build, self.source])

    def compile_all(self):
        if os.path.exists(os.path.join(self.build, tests.KEPT)):
            os.unlink(os.path.join(self.build, tests.KEPT))
        run(["ninja", "-C", self.build, "-j", str(self.jobs), "--quiet"])

    def build_all(self, meson_arguments):
        self.set_up(meson_arguments)
        self.compile_all()

    def generated(self):
        """Builds the headers that the sources include, so that single files can be compiled."""
        names = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
        headers = [line.split(":")[0] for line in names.split("\n") if re.match(r"\S+\.h: ", line)]
        if headers:
            run(["ninja", "-C", self.build, "-j", str(self.jobs), "--quiet", *headers])

    def those_that_compile(self, drawn_places):
        """@drawn_places without those whose mutants the compiler refuses."""
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as file:
            commands = collections.defaultdict(list)
            for entry in json.load(file):
                path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), self.source)
                commands[path].append(entry)
        by_path = collections.defaultdict(list)
        for place in drawn_places:
            by_path[place.path].append(place)
        good = set()
        for path, of_path in sorted(by_path.items()):
            users = commands.get(path, [])
            if path.endswith(".h"):
                users = [c for p, of in commands.items() if p.startswith("gpu/cpu/") for c in of]
            if users:  # else this machine lacks what the file needs, so no test has it
                good.update(self.good_places(path, of_path, users))
        return [p for p in drawn_places if p in good]

    def good_places(self, path, of_path, commands):
        """Compiles @path with all its mutants, and leaves out those on lines with errors until it compiles."""
        left = list(of_path)
        while left:
            self.inject(list(enumerate(left)))
            lines = set()
            failed = False
            for command in commands:
                failed_here, bad = self.errors_of(command, path)
                failed |= failed_here
                lines |= bad
            if not failed:
                break
            fewer = [p for p in left if not lines.intersection(range(p.line, p.line + p_lines(p) + 1))]
            if len(fewer) == len(left):
                fewer = left[:-1]  # an error elsewhere that a mutant caused
            left = fewer
        with open(path, "rb") as file:
            self.write(path, file.read())
        return left

    def errors_of(self, command, path):
        """(whether it failed, lines of @path with errors) of compiling one file."""
        words = shlex.split(command["command"])
        if "ccache" in os.path.basename(words[0]):
            words = words[1:]
        cut = words.index("-o")
        words = words[:cut] + words[cut + 2:]
        words = [w for w in words if w not in ("-c", "-MD", "-MQ", "-MF") and not w.endswith((".o", ".o.d"))]
        result = subprocess.run([*words, "-fsyntax-only"], cwd=command["directory"], capture_output=True, text=True, check=False)
        found = re.findall(r"^(\S+?):(\d+):\d+: (?:fatal )?error", result.stderr, re.MULTILINE)
        return result.returncode != 0, {int(line) for name, line in found if name.endswith(path)}


def p_lines(place):
    """Lines after its first that a place covers; the kind `order` covers two statements."""
    return 4 if place.kind == "order" else 1


def run(command):
    """Runs @command; ends the program with its output if it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        sys.stderr.write(result.stdout[-8000:])
        sys.exit(f"mutate: failed: {shlex.join(command)}")


def build(root, work, folders, files, count, each, seed, meson_arguments, jobs):
    """Chooses, compiles and returns the mutants: [(number, place)]."""
    copy = Copy(root, work, jobs)
    copy.copy()
    copy.set_up(meson_arguments)
    copy.generated()
    mutants = []
    for wanted, candidates in choose(folders, files, count, each, seed).values():
        mutants += copy.those_that_compile(candidates)[:wanted]
    mutants = list(enumerate(mutants, 1))
    copy.inject(mutants)
    copy.compile_all()
    return mutants
