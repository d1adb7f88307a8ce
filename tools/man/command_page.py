#!/usr/bin/env python3
"""The man page of kvcobra or kvcobra-lab, of a command, or of a bench, made from the program's --help.

    command_page.py VERSION KVCOBRA                  kvcobra(1)
    command_page.py VERSION KVCOBRA table            kvcobra-table(1)
    command_page.py VERSION KVCOBRA-LAB bench solve  kvcobra-lab-bench-solve(1)

The meson.build of each program lists its pages; tests/e2e/cli/man_pages.py checks that every command has one.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mdoc

DATE = "November 23, 2026"
LIST = re.compile(r"^(Commands|Measures on this machine):$")
ENTRY = re.compile(r"^  ([a-z][a-z-]*)  +(\S.*)$")
OPTION = re.compile(r"^ {2,6}(-\S.*)$")
PURPOSE = {"kvcobra": ".Nd compress, measure and share the key\\-value caches of language models",
           "kvcobra-lab": ".Nd measure the parts of KV\\-COBRA and compare them with others"}
FOOTNOTE = re.compile(r"^Mandatory or optional arguments to long options")


def help_of(program, words):
    env = {k: v for k, v in os.environ.items() if k not in ("ARGP_HELP_FMT", "COLUMNS")}
    out = subprocess.run([program, *words, "--help"], env=env, capture_output=True, text=True, check=True)
    return out.stdout.rstrip("\n").split("\n")


def listed(lines):
    """The names and summaries in a list of commands: from its heading to the next blank line."""
    start = next((i for i, s in enumerate(lines) if LIST.match(s)), len(lines))
    names = []
    for s in lines[start + 1:]:
        if not s:
            break
        m = ENTRY.match(s)
        if m:
            names.append((m.group(1), m.group(2)))
    return names


def divide(lines):
    """The forms of use, description, options, and the text after them."""
    first = next((i for i, s in enumerate(lines) if OPTION.match(s)), len(lines))
    while 0 < first < len(lines) and re.match(r"^ \S.*:$", lines[first - 1]):
        first -= 1
    last = next((i + 1 for i, s in enumerate(lines) if re.match(r"^ {6}--usage ", s)), first)
    while last < len(lines) and lines[last].startswith(" " * 20):
        last += 1
    n_usage = 1
    while n_usage < first and re.match(r"^(  or: | {6,})", lines[n_usage]):
        n_usage += 1
    usage = re.split(r" or: +", " ".join(s.strip() for s in lines[:n_usage]).removeprefix("Usage: "))
    return usage, lines[n_usage:first], lines[first:last], lines[last:]


def options_list(lines):
    """Options as a tagged list."""
    out, description = [], []

    def flush():
        out.extend(mdoc.text(" ".join(description)))
        description.clear()

    for s in lines:
        m = OPTION.match(s)
        if re.match(r"^ \S", s): # the heading of a group
            flush()
            out += [".El", ".Pp", mdoc.line(s.strip()), ".Bl -tag -width indent"]
        elif m:
            flush()
            names, _, rest = m.group(1).partition("  ") if "  " in m.group(1) else m.group(1).partition("\0")
            if not rest and len(names) > 22 and " " in names:  # a long name leaves one blank before its description
                cut = re.match(r"((?:-\S, )?--[a-z][a-z-]*(?:=\S+|\[=\S+\])?)(?: (.*))?$", names)
                names, rest = cut.group(1), cut.group(2) or ""
            out.append(".It Xo")
            out.append(mdoc.line(names))
            out.append(".Xc")
            description.append(rest.strip())
        elif s.strip() and not FOOTNOTE.match(s):
            description.append(s.strip())
    flush()
    return [".Bl -tag -width indent", *out, ".El"]


def without_footnote(lines):
    return [s for run in mdoc.paragraphs(lines) if not FOOTNOTE.match(run[0]) for s in [*run, ""]]


def closing(lines):
    """The text behind the options: its examples, exit statuses and related commands get sections of their own."""
    notes, examples, status = [], [], []
    runs = list(mdoc.paragraphs(without_footnote(lines)))
    related = [re.findall(r"kvcobra ([a-z-]+)", " ".join(run)) for run in runs if run[0].startswith("See also: ")]
    runs = [run for run in runs if not run[0].startswith("See also: ")]
    at = next((i for i, run in enumerate(runs) if re.match(r"^Examples?\b.*[:.]?", run[0])), len(runs))
    for run in runs[:at]:
        (status if run[0].startswith("Exit status") else notes).extend([*run, ""])
    for run in runs[at:]:
        examples.extend([*run, ""])
    if examples and re.match(r"^Examples?:$", examples[0]):
        examples = examples[1:]
    return notes, examples, status, sum(related, [])


def exit_status(lines):
    if lines:
        return mdoc.blocks([re.sub(r"^Exit status: *", "", lines[0]), *lines[1:]])
    return mdoc.text("0 success; 1 failure, one sentence on standard error says why; 2 wrong usage, nothing was done.")


def command_page(version, program, words, summary):
    usage, description, options, rest = divide(help_of(program, words))
    notes, examples, status, names = closing(rest)
    own = os.path.basename(program)
    name = "-".join([own, *words])
    forms = [form.removeprefix(" ".join([own, *words])).strip() for form in usage]
    out = mdoc.head(DATE, name, 1, version)
    out += [".Sh NAME", f".Nm {name}", f".Nd {mdoc.escape(summary)}"]
    out += [".Sh SYNOPSIS"]
    for form in forms:
        out += [f".Nm {own} {' '.join(words)}", *([mdoc.line(form)] if form else [])]
    out += [".Sh DESCRIPTION", *mdoc.blocks([*description, "", *notes])]
    if options:
        out += [".Sh OPTIONS", *options_list(options)]
    out += [".Sh EXIT STATUS", *exit_status(status)]
    if examples:
        out += [".Sh EXAMPLES", *mdoc.blocks(examples)]
    related = [(f"kvcobra-{r}", 1) for r in names] if own == "kvcobra" else [(f"kvcobra-{words[0]}", 1)]
    if words[0] == "bench" and len(words) == 1:
        related = [(f"{own}-bench-{b}", 1) for b, _ in listed(help_of(program, words))]
    elif words[0] == "bench":
        related = [(f"{own}-bench", 1)]
    return out + mdoc.see_also([("kvcobra", 1), (own, 1), ("kvcobrad", 8), *related])


def program_page(version, program):
    own = os.path.basename(program)
    lines = help_of(program, [])
    commands = listed(lines)
    start = next(i for i, s in enumerate(lines) if LIST.match(s))
    example = next(i for i, s in enumerate(lines) if s.startswith("Example"))
    last = next(i for i, s in enumerate(lines) if s.startswith(f"  {own} help"))
    out = mdoc.head(DATE, own, 1, version)
    out += [".Sh NAME", f".Nm {own}", PURPOSE[own]]
    out += [".Sh SYNOPSIS", ".Nm", ".Ar COMMAND", ".Op Ar options"]
    out += [".Sh DESCRIPTION", *mdoc.blocks(lines[1:start])]
    out += [".Pp", "Each command has a page of its own:", f".Bl -tag -width {own}-recalibrate(1)"]
    for name, summary in commands:
        out += [f".It Xr {own}-{name} 1", mdoc.line(summary)]
    out += [".El", ".Pp", *mdoc.text(f"'{own} help COMMAND' prints the options of a command, '{own} --version' the version.")]
    out += [".Sh ENVIRONMENT", ".Bl -tag -width indent"]
    out += [".It Ev KVCOBRA_SOCKET", "The clients' socket of the daemon.",
            ".It Ev KVCOBRA_OPERATOR_SOCKET", "The operators' socket.",
            ".It Ev XDG_RUNTIME_DIR", "The folder in which the sockets of",
            ".Ql kvcobrad \\-\\-user", "are found; without it /run/user/UID, or /tmp/kvcobra\\-UID.",
            ".It Ev NO_COLOR", "If it is set, no output has colours.", ".El"]
    out += [".Sh EXIT STATUS", *exit_status([])]
    out += [".Sh EXAMPLES", *mdoc.blocks([re.sub(r"^Example\. ", "", s) for s in lines[example:last]])]
    return out + mdoc.see_also([("kvcobra", 1), ("kvcobra-lab", 1), ("libkvcobra", 3), ("kvcobrad.conf", 5), ("kvcobrad-metrics", 7), ("kvcobrad", 8)])


def main():
    version, program, *words = sys.argv[1:]
    if not words:
        page = program_page(version, program)
    else:
        summary = dict(listed(help_of(program, words[:-1]))).get(words[-1])
        if summary is None:
            sys.exit(f"command_page.py: {' '.join(words)} is not a command of {program}")
        page = command_page(version, program, words, summary)
    print("\n".join(s for s in page if s is not None))


if __name__ == "__main__":
    main()
