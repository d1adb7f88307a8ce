#!/usr/bin/env python3
"""Looks for words that make our English hard to read, in all texts for people.

    python3 tests/form/prose.py [FILE...]       without files: every file that git tracks

Read are comments and string literals of C, C++ and CUDA, comments and strings of Python, and whole Markdown,
man pages, shell scripts, protocol files and meson files. Prints FILE:LINE: the words, why, and the line. Exit 1 if anything
was found. CONVENTIONS.md section 7 has the rule behind the list.
"""
import os
import re
import sys

import source

# pattern, what to write instead
WORDS = [
    (r"nobody|somebody|whoever|whomever|someone's|somebody's", "name the process, client, tenant or thread"),
    (r"comes? again|came again|coming again|come back later", "retry later; the client gets EAGAIN"),
    (r"told to (come|try)|are told|is told|was told|were told|gets? told", "gets ERRNO, receives, is notified"),
    (r"any more|no more is", "no longer; or say what changes"),
    (r"what was there|what is there|what stands there|what stood there", "name the thing"),
    (r"goes on on|go on on", "continues with"),
    (r"held against", "checked against, compared with"),
    (r"of no use", "say what the caller must do"),
    (r"for want of", "for lack of, without"),
    (r"last words|birth|fate of", "create, error text, free; reclaiming"),
    (r"the line is full|stands? in line|waits? in line", "queue"),
    (r"plan_tables?|plan tables?", "device table"),
    (r"harm|harms|harmed", "distortion, with its unit"),
    (r"ownerless", "orphaned"),
    (r"made ahead|spares", "preallocated"),
    (r"has its say|have their say|speaks up|says so itself|does not know better", "name what is sent, printed or returned"),
    (r"in nobody|no one's|no one", "name the process, client, tenant or thread"),
    (r"is so already|are so already", "no change"),
    (r"makes of it|make of it|made of it what", "name the operation"),
]
PATTERN = re.compile("|".join(f"(?P<w{i}>\\b(?:{p})\\b)" for i, (p, _) in enumerate(WORDS)), re.IGNORECASE)

C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
PY_TOKEN = re.compile(r'""".*?"""|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
C_FILES = (".c", ".h", ".cu", ".cuh", ".cpp", ".def", ".css", ".js")  # files with comments and texts as in C
WHOLE_FILES = (".md", ".1", ".3", ".5", ".7", ".8", ".in", ".sh", ".proto", ".build", ".txt", ".conf", ".service", ".socket",
               ".fish", ".bash", ".html")
SKIPPED = ("LICENSE", "tests/form/prose.py", "tests/form/test_form.py", "tests/fuzz/corpus/")


def readable(path, text):
    """@text with blanks instead of everything that is not prose; lines and columns stay."""
    if path.endswith(C_FILES):
        token = C_TOKEN
    elif path.endswith(".py"):
        token = PY_TOKEN
    elif path.endswith(WHOLE_FILES):
        return text
    else:
        return ""
    out, last = [], 0
    for m in token.finditer(text):
        out.append(re.sub(r"[^\n]", " ", text[last:m.start()]))
        out.append(m.group())
        last = m.end()
    return "".join(out)


def join_lines(text):
    """Phrases may be broken over two lines: line ends and comment stars count as blanks. Offsets stay."""
    return re.sub(r"\n[ \t]*(?:\*|//|#)?", lambda m: " " * len(m.group()), text)


def findings(path):
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except UnicodeDecodeError:
        return
    lines = text.split("\n")
    flat = re.sub(r" {2,}", lambda m: " " + "\0" * (len(m.group()) - 1), join_lines(readable(path, text)))
    at = [i for i, c in enumerate(flat) if c != "\0"]
    flat = flat.replace("\0", "")
    for m in PATTERN.finditer(flat):
        if flat[m.start() - 1:m.start()] in ("'", '"') and flat[m.start() - 1] == flat[m.end():m.end() + 1]:
            continue  # a word alone in quotes is a name: a key of JSON, a user
        advice = WORDS[int(m.lastgroup[1:])][1]
        line = text.count("\n", 0, at[m.start()])
        yield line + 1, m.group(), advice, lines[line].strip()


def main(paths):
    if not paths:
        source.root()
        paths = source.git("ls-files").split("\n")
    n = 0
    for path in paths:
        if not os.path.isfile(path) or path.startswith(SKIPPED):
            continue
        for line, word, advice, text in findings(path):
            print(f"{path}:{line}: \"{word}\" ({advice}): {text[:100]}")
            n += 1
    if n:
        print(f"{n} places; CONVENTIONS.md section 7 says how we write")
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
