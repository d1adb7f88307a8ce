#!/usr/bin/env python3
"""Checks the man pages of the build: every command, bench, option and call has a page, references exist, no warnings.

    man_pages.py KVCOBRA KVCOBRA-LAB ROOT PAGE...       PAGE: the files that the build made

Needs no daemon. man(1) and mandoc(1) check the form of the pages where they are installed.
"""
import os
import re
import shutil
import subprocess
import sys

failures = []


def check(good, sentence):
    if not good:
        failures.append(sentence)


def help_of(kvcobra, *words):
    return subprocess.run([kvcobra, *words, "--help"], capture_output=True, text=True, check=True).stdout


def listed(text):
    """The names in a list of commands: indented by two, from its heading to the next blank line."""
    block = re.search(r"^(?:Commands|Measures on this machine):\n((?:  .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  ([a-z][a-z-]*) ", block.group(1), re.MULTILINE) if block else []


def unescaped(text):
    return text.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")


def check_commands(programs, pages):
    wanted = {}
    for program, least in zip(programs, ((20, 1), (1, 5))):
        own = os.path.basename(program)
        commands = [(c,) for c in listed(help_of(program))]
        benches = [("bench", b) for b in listed(help_of(program, "bench"))]
        check(len(commands) >= least[0] and len(benches) >= least[1],
              f"{len(commands)} commands and {len(benches)} benches in the help of {own}")
        wanted.update({"-".join([own, *words]) + ".1": (program, *words) for words in [(), *commands, *benches]})
    made = {name for name in pages if name.endswith(".1")}
    check(not wanted.keys() - made, f"no meson.build lists a page for {sorted(wanted.keys() - made)}")
    check(not made - wanted.keys(), f"pages of commands that --help does not list: {sorted(made - wanted.keys())}")
    for name, (program, *words) in wanted.items():
        if not words:
            continue
        page = unescaped(pages.get(name, ""))
        text = help_of(program, *words)
        for option in set(re.findall(r"(?:^|[ ,])(--[a-z][a-z0-9-]*)", text, re.MULTILINE)):
            check(option in page, f"the page of {' '.join(words)} lacks {option}")
        odd = re.findall(r"^ +(-[^-A-Za-z0-9?]),", text, re.MULTILINE)
        check(not odd, f"the help of {' '.join(words)} has short options that are no letters: {odd}")
        for example in re.findall(r"^  (kvcobra\S* .*)$", text, re.MULTILINE):
            check(f"  {example}\n" in page, f"the page of {' '.join(words)} lacks the example '{example}'")
        # words that the page must not have lost between the sections of --help
        lost = set(re.findall(r"[A-Za-z]{4,}", re.sub(r"(?s)Mandatory or optional.*?options\.", "", text)))
        lost -= set(re.findall(r"[A-Za-z]{4,}", page)) | {"Usage", "Example", "Examples", "status", "Exit", "also"}
        check(not lost, f"the page of {' '.join(words)} lacks words of --help: {sorted(lost)}")


def check_rows(root, kvcobra):
    """A build knows the files that were there when it was set up."""
    out = subprocess.run([sys.executable, "-B", os.path.join(root, "base/rows.py"), "COMMAND", os.path.join(root, "tools")],
                         capture_output=True, text=True, check=True)
    rows = {s for s in out.stdout.split() if not s.endswith(".c")}
    commands = set(listed(help_of(kvcobra)))
    check(rows == commands, f"kvcobra has not the commands of tools/*/cmd_*.c: {sorted(rows ^ commands)}; run meson setup --reconfigure")


def exported(root, library):
    with open(os.path.join(root, library), encoding="utf-8") as f:
        return re.findall(r"\b(kvc_\w+);", re.sub(r"(?s)^KVCOBRA_PRIVATE.*?^}.*?;", "", f.read(), flags=re.MULTILINE))


def check_calls(root, pages):
    calls = exported(root, "client/libkvcobra.map") + exported(root, "alloc/libkvcobra-alloc.map")
    check(len(calls) > 60, f"only {len(calls)} calls in the export lists")
    for call in calls:
        link = re.fullmatch(r"\.so man3/(.*)\n", pages.get(call + ".3", ""))
        if not link or link.group(1) not in pages:
            failures.append(f"{call} has no page; after a change of a header run meson setup --reconfigure")
            continue
        page = pages[link.group(1)]
        synopsis = page[page.index(".Sh SYNOPSIS"):page.index(".Sh DESCRIPTION")]
        description = page[page.index(".Sh DESCRIPTION"):page.index(".Sh RETURN VALUES")]
        values = page[page.index(".Sh RETURN VALUES"):]
        declared = re.search(rf'^\.Ft "([^"]*)"\n\.Fn {call} ', synopsis, re.MULTILINE)
        check(declared, f"{call} is not in the SYNOPSIS of {link.group(1)}")
        check(re.search(rf"^\.It Fn {call}\n\S", description, re.MULTILINE), f"{call} is not described in {link.group(1)}")
        if declared and declared.group(1) == "int":
            check(re.search(rf"^\.It Fn {call}\n\S", values, re.MULTILINE), f"{link.group(1)} lacks what {call} returns")
    for name, page in pages.items():
        running = re.sub(r"(?ms)^\.Bd -literal$.*?^\.Ed$", "", page)
        check(not name.endswith(".3") or not re.search(r"(?<!\w)@[a-z]", running), f"{name} has a mark of a parameter")


def check_references(pages):
    for name, page in pages.items():
        for target, section in re.findall(r"\.?\bXr (\S+) ([1-8])", page):
            check(f"{target}.{section}" in pages, f"{name} refers to {target}({section}), which no build makes")


def check_form(paths):
    """Return: the programs that looked at the pages."""
    used = []
    for program, command in [("man", ["man", "--warnings", "-E", "UTF-8", "-l"]), ("mandoc", ["mandoc", "-Tlint", "-Wwarning"])]:
        if not shutil.which(program):
            continue
        used.append(program)
        for path in paths:
            out = subprocess.run([*command, path], env={**os.environ, "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""},
                                 capture_output=True, text=True, check=False)
            said = out.stderr if program == "man" else out.stdout
            check(out.returncode == 0 and not said, f"{program}: {os.path.basename(path)}: {said[:300]}")
            if program == "man":
                check(len(out.stdout) > 500, f"man prints almost nothing of {os.path.basename(path)}")
    return used


def main():
    kvcobra, lab, root, *paths = sys.argv[1:]
    pages = {}
    for path in paths:
        with open(path, encoding="utf-8") as f:
            pages[os.path.basename(path)] = f.read()
    check_rows(root, kvcobra)
    check_commands((kvcobra, lab), pages)
    check_calls(root, pages)
    check_references(pages)
    used = check_form([p for p in paths if not pages[os.path.basename(p)].startswith(".so ")])
    for sentence in failures:
        print("FAIL", sentence)
    print(f"{len(pages)} pages, {len(failures)} failures, form checked by {' and '.join(used) or 'no program'}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
