#!/usr/bin/env python3
"""Compares the #include lines of the product with the table of folders in DESIGN.md section 2.

    python3 tests/form/includes.py            fails where a file includes something that its row does not list
    python3 tests/form/includes.py --print    prints the table for the present code, and the upward includes

The table has the columns "folder", "holds" and "may include". The first column names one or more folders, or files, in
backquotes; a file belongs to the longest name that fits. The third column lists names of the first column in backquotes,
and libraries without backquotes. The C library is free for all, and so are the files of the same row. Rows stand bottom to
top: a row lists rows above it only, except for names behind the word "upwards:". Every folder with C, C++ or CUDA files has
a row, and nothing may include tests/, or lab/ but the files of lab/.
"""
import os
import re
import sys

import source

ADVICE = ("Include only what the row of the folder in DESIGN.md section 2 lists. If the new arrow is right, and points to a row "
          "further up, add it there; includes.py --print shows the columns as the code is.")

# Header, or folder of headers, of each library outside the C library and the kernel.
LIBRARIES = {"cblas.h": "OpenBLAS", "lapacke.h": "LAPACKE", "sodium.h": "libsodium", "jansson.h": "jansson", "unistr.h": "libunistring",
             "hiredis/": "hiredis", "openssl/": "OpenSSL", "liburing.h": "liburing", "systemd/": "libsystemd", "microhttpd.h": "libmicrohttpd",
             "isa-l/": "ISA-L", "pcre2.h": "PCRE2", "protobuf-c/": "protobuf-c", "cuda": "CUDA", "mma.h": "CUDA"}


class Row:
    """A row of the table. .upwards: the listed names that need not stand above it."""

    def __init__(self, names, holds, cell, place):
        down, _, up = cell.partition("upwards:")
        self.names = names
        self.holds = holds
        self.place = place
        self.upwards = set(re.findall(r"`([^`]+)`", up))
        libraries = {word.strip(" ;") for word in re.sub(r"`[^`]*`", "", down).split(",")} - {""}
        self.allowed = set(re.findall(r"`([^`]+)`", down)) | libraries | self.upwards


def table_rows(design):
    """Rows of the table of section 2 in the text of DESIGN.md."""
    section = re.search(r"^## 2\..*?(?=^## )", design, re.MULTILINE | re.DOTALL)
    rows, columns = [], None
    for line in (section.group() if section else "").split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif "folder" in cells and "may include" in cells:
            columns = cells.index("folder"), cells.index("may include")
        elif columns and not set(line) <= set("|-: "):
            names = re.findall(r"`([^`]+)`", cells[columns[0]])
            rows.append(Row(names, cells[columns[0] + 1], cells[columns[1]], len(rows)))
    return rows


def row_of(rows, path):
    """The row whose name is the longest that @path begins with, and that name."""
    best, name = None, ""
    for row in rows:
        for candidate in row.names:
            if (path == candidate or candidate.endswith("/") and path.startswith(candidate)) and len(candidate) > len(name):
                best, name = row, candidate
    return best, name


def library_of(header):
    for prefix, library in LIBRARIES.items():
        if header == prefix or header.startswith(prefix) and not prefix.endswith(".h"):
            return library
    return None


def resolve(path, header, quoted, known):
    """Path in the project that an #include means; None for a library's header."""
    if not quoted:
        return None
    beside = os.path.normpath(os.path.join(os.path.dirname(path), header))
    public = os.path.join("client", header)  # all public headers are installed in one folder
    return next((p for p in (header, beside, public) if p in known), header)


def arrows(files, rows):
    """(file, line, included path, row of the file, name that the row must list) of every #include but the C library's."""
    known = {file.path for file in files}
    for file in files:
        row, _ = row_of(rows, file.path)
        for header, quoted, line in file.includes:
            target = resolve(file.path, header, quoted, known)
            if target is None:
                name = library_of(header)
            elif target.startswith("tests/"):
                name = "tests/"
            else:
                other, name = row_of(rows, target)
                if other is None or other is row:
                    name = "protobuf-c" if target.endswith(".pb-c.h") else None
            if name:
                yield file.path, line, header, row, name


def check(files, rows):
    findings = []
    if not rows:
        return ["DESIGN.md: section 2 has no table with the columns 'folder' and 'may include'"]
    places = {name: row.place for row in rows for name in row.names}
    for row in rows:
        for name in sorted(row.allowed - row.upwards):
            if is_path(name) and places.get(name, row.place) >= row.place:
                findings.append(f"DESIGN.md: {row.names[0]} lists {name}, which has no row above it")
    for folder in sorted({os.path.dirname(file.path) + "/" for file in files}):
        if folder not in places:
            findings.append(f"DESIGN.md: {folder} holds code and has no row in section 2")
    for path, line, header, row, name in arrows(files, rows):
        if name.startswith("lab/") and not path.startswith("lab/"):
            findings.append(f"{path}:{line}: {header}: nothing but lab/ and tests/ may include the laboratory, whatever the table says")
        elif row and (name == "tests/" or name not in row.allowed):
            findings.append(f"{path}:{line}: {row.names[0]} may not include {name} ({header})")
    return findings


def print_table(files, rows):
    """The rows with the includes of the present code, then rows for folders without one; upward includes go to standard error."""
    for folder in sorted({os.path.dirname(file.path) + "/" for file in files} - {name for row in rows for name in row.names}):
        rows.append(Row([folder], "", "", len(rows)))
    place_of = {name: row.place for row in rows for name in row.names}
    found = {row.place: {} for row in rows}
    for path, _, _, row, name in arrows(files, rows):
        if row and name != "tests/":
            found[row.place].setdefault(name, set()).add(path)
    print("| folder | holds | may include |\n|---|---|---|")
    for row in rows:
        names = sorted(found[row.place], key=lambda name: (place_of.get(name, len(rows)), name.lower()))
        up = [name for name in names if is_path(name) and place_of.get(name, len(rows)) > row.place]
        cell = ", ".join(f"`{name}`" if is_path(name) else name for name in names if name not in up)
        if up:
            cell = f"{cell}; upwards: ".lstrip("; ") + ", ".join(f"`{name}`" for name in up)
        print(f"| {', '.join(f'`{name}`' for name in row.names)} | {row.holds} | {cell} |")
        for name in up:
            print(f"{row.names[0]} upwards to {name}: {', '.join(sorted(found[row.place][name]))}", file=sys.stderr)


def is_path(name):
    return name.endswith(("/", ".h"))


def main(arguments):
    source.root()
    with open("DESIGN.md", encoding="utf-8") as file:
        rows = table_rows(file.read())
    files = source.product()
    if arguments == ["--print"]:
        print_table(files, rows)
        return 0
    return source.finish(check(files, rows), ADVICE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
