"""What the programs that make man pages share: text as mdoc source.

command_page.py and library_page.py use it. Text goes through text() or literal(), so that no line of a help text or
of a header can be read as a request of mdoc.
"""
import re

ENDS_SENTENCE = re.compile(r"(?<=[A-Za-z0-9)\]'%][.?!]) (?=[A-Z0-9'*@-])")


def escape(text):
    """@text for the middle of a line: backslashes, and minus signs that a reader may copy."""
    return text.replace("\\", "\\e").replace("-", "\\-")


def line(text):
    """One line of running text. A leading point or quote would begin a request."""
    text = escape(text)
    return "\\&" + text if text.startswith((".", "'")) else text


def text(words):
    """Running text, a sentence a line."""
    return [line(s) for s in ENDS_SENTENCE.split(re.sub(r"\s+", " ", words).strip()) if s]


def literal(lines):
    """Lines as they are."""
    return [".Bd -literal", *(line(s) if s else "" for s in lines), ".Ed"]


def quoted(word):
    """An argument of a request: never read as the name of another one."""
    return '"' + escape(word).replace('"', "\\(dq") + '"'


def paragraphs(lines):
    """Runs of lines without a blank line between them."""
    run = []
    for s in [*lines, ""]:
        if s.strip():
            run.append(s)
        elif run:
            yield run
            run = []


def blocks(lines):
    """Paragraphs as mdoc: those with an indented line are literal, the others running text."""
    out = []
    for run in paragraphs(lines):
        if out:
            out.append(".Pp")
        if not any(s.startswith("  ") for s in run):
            out += text(" ".join(run))
            continue
        if out:
            out.pop()
        first = next(i for i, s in enumerate(run) if s.startswith("  "))
        if first:
            out += [".Pp"] * bool(out) + text(" ".join(run[:first]))
        out += literal(run[first:])
    return out


def head(date, title, section, version):
    return [f".Dd {date}", f".Dt {title.upper()} {section}", f'.Os "KV\\-COBRA {version}"']


def see_also(pages):
    """References to pages (NAME, SECTION), by section and name, as mandoc wants them."""
    pages = sorted(set(pages), key=lambda p: (p[1], p[0]))
    return [".Sh SEE ALSO", *(f".Xr {name} {section}{' ,' if i + 1 < len(pages) else ''}"
                              for i, (name, section) in enumerate(pages))]
