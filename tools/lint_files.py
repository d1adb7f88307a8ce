#!/usr/bin/env python3
"""Runs a checker over each C file of the product, as many at a time as there are processors; lint.sh calls it.

    lint_files.py tidy BUILD        clang-tidy with .clang-tidy
    lint_files.py analyzer BUILD    gcc -fanalyzer, less what lint_analyzer.txt accepts

BUILD is a folder that meson has set up with GCC; its compile_commands.json names the files and their options. Exit
status 1 if anything was found.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

ACCEPTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lint_analyzer.txt")
KIND = re.compile(r"\[-W(analyzer-[a-z-]+)\]")


def product_files(build):
    """Yields (path, folder, command as words) for each file once; those of tests and generated ones are left out."""
    seen = set()
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        entries = json.load(f)
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
        if path in seen or not path.endswith(".c") or path.startswith(("tests/", build)):
            continue
        seen.add(path)
        yield path, entry["directory"], shlex.split(entry["command"])


def tidy(build, path, _folder, _words):
    """Findings of clang-tidy in one file, as text.

    Commands, benches and examples call functions of other files one after another. clang's analyzer does not see that a
    result above 0 is impossible, and had 20 findings there, all of that kind. tools/engine/, which reads files of others,
    is analysed like the rest, and gcc -fanalyzer looks at all.
    """
    is_command = path.startswith(("tools/", "lab/", "examples/")) and not path.startswith("tools/engine/")
    checks = ["--checks=-clang-analyzer-core.*"] if is_command else []
    done = subprocess.run(["clang-tidy", "-p", build, "--quiet", *checks, path], capture_output=True, text=True, check=False)
    return done.stdout or (done.stderr if done.returncode else "")


def analyze(accepted, path, folder, words):
    """Findings of gcc -fanalyzer in one file that are not accepted, as text. Removes those that occur from @accepted."""
    words = [w for w in words[: words.index("-MD")] if os.path.basename(w) != "ccache"]
    words += ["-fanalyzer", "-fdiagnostics-color=never", "-S", "-o", os.devnull, os.path.relpath(path, folder)]
    short = subprocess.run(words + ["-fdiagnostics-path-format=none"], cwd=folder, capture_output=True, text=True, check=False)
    kinds = set(KIND.findall(short.stderr))
    rest = {k for k in kinds if (path, k) not in accepted}
    for kind in kinds - rest:
        accepted[(path, kind)] = True
    if not rest and (short.returncode == 0):
        return ""
    whole = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return whole.stderr


def read_accepted():
    """{(path, kind): whether it was found}, from lint_analyzer.txt."""
    accepted = {}
    with open(ACCEPTED, encoding="utf-8") as f:
        for line in f:
            words = line.split()
            if words and not line.startswith("#"):
                accepted[(words[0], words[1])] = False
    return accepted


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("tidy", "analyzer"):
        sys.exit("usage: lint_files.py tidy|analyzer BUILD")
    build = sys.argv[2]
    accepted = read_accepted() if sys.argv[1] == "analyzer" else {}
    check = (lambda *file: analyze(accepted, *file)) if sys.argv[1] == "analyzer" else (lambda *file: tidy(build, *file))
    found = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for text in pool.map(lambda file: check(*file), product_files(build)):
            if text:
                print(text, end="", flush=True)
                found = True
    for (path, kind), is_found in accepted.items():
        if not is_found:
            print(f"{path} has no finding of {kind}: remove its line from tools/lint_analyzer.txt")
            found = True
    sys.exit(found)


if __name__ == "__main__":
    main()
