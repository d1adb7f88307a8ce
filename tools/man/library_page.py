#!/usr/bin/env python3
"""The man pages of the libraries, made from the comments of the installed headers.

    library_page.py FOLDER VERSION HEADER...   writes all pages: libkvcobra.3, kvcobra-client.3, kvc_client_new.3, ...
    library_page.py --list HEADER...           prints their names

PAGES below has the groups of calls: each is a section of a header ("/* ---- client ---- */"). A page kvc_NAME.3
refers to the page of its group. tests/e2e/cli/man_pages.py checks that every call has a page.
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mdoc

DATE = "November 23, 2026"
# page: header, summary, sections of the header; "": what precedes its first section
PAGES = {
    "kvcobra-client": ("kvcobra.h", "where kvcobrad is, connections to it, clients without one", ["", "client"]),
    "kvcobra-model": ("kvcobra.h", "models, their geometry and their tables", ["model"]),
    "kvcobra-seq": ("kvcobra.h", "sequences: append, attend, read, match and commit", ["sequence"]),
    "kvcobra-gpu": ("kvcobra-gpu.h", "sequences in GPU memory, and CUDA graphs", ["device and stream", "CUDA graphs"]),
    "kvcobra-llama": ("kvcobra-llama.h", "states of llama.cpp, read into sequences and written from them", [""]),
    "kvcobra-tiers": ("kvcobra-tiers.h", "find prompts in memory and on a disk, prefetch them, and keep them in files",
                      ["", "pages in files"]),
    "kvcobra-requests": ("kvcobra-call.h", "connect with a time limit, and send any request",
                         ["connecting", "requests of kvcobra.proto"]),
    "kvcobra-alloc": ("kvcobra-alloc.h", "allocators, which make tables", ["", "allocator"]),
    "kvcobra-stats": ("kvcobra-alloc.h", "statistics of a model's activations", ["statistics"]),
    "kvcobra-solving": ("kvcobra-alloc.h", "from statistics and a bit budget to a table", ["solving"]),
    "kvcobra-views": ("kvcobra-alloc.h", "what a table stores for each head", ["looking into tables"]),
}
INTRODUCTION = {"kvcobra.h": "libkvcobra", "kvcobra-alloc.h": "kvcobra-alloc"}
SYNOPSIS = """\
kvc_client *c; kvc_model *m; kvc_seq *s;

kvc_client_new(&c);
kvc_client_set_gpu(c, &gpu);              /* optional; k, v, q and out are device pointers then */
kvc_client_connect(c, NULL);              /* optional; without it: embedded */
kvc_model_open(c, &id, &m);               /* with the active table */
kvc_seq_new(m, NULL, 0, &s);
kvc_seq_match(s, tokens, n, &found);      /* chunks that other clients published */
kvc_seq_append(s, layer, KVC_F32, k, v, n_new);
kvc_seq_attend(s, layer, q, n_q, out);
kvc_seq_commit(s, tokens, n, &published); /* for other clients */
kvc_client_free(c);"""
SECTION = re.compile(r"^/\* ---- (.*) ---- \*/$", re.MULTILINE)
CALL = re.compile(r"^KVC_EXPORT ([^;(]*?)(\**)(kvc_\w+)\(([^;]*)\);", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def plain(text):
    """@text without the marks of parameters."""
    return re.sub(r"(?<![\w*])@(?=[a-z])", "", text)


class Call:
    """One function, with its comment."""

    def __init__(self, match, comment):
        self.type = (match.group(1) + match.group(2)).strip()
        self.name = match.group(3)
        self.arguments = [re.sub(r"\s+", " ", a).strip() for a in match.group(4).split(",")]
        # its own line in a long comment, in the middle of a short one
        body, *returned = re.split(r"(?m)^Return: |(?<=[.!)\n]) Return: ", comment, maxsplit=1)
        returned = returned[0] if returned else ""
        self.returned = returned.strip("\n").split("\n") if returned.strip() else []
        self.returned = [plain(s) for s in self.returned]
        self.summary, self.parameters, self.lines = self.divide(body.strip("\n").split("\n"))

    def divide(self, lines):
        """The sentence behind the name, the parameters with their descriptions, and the rest."""
        summary, parameters, rest = "", [], []
        for i, s in enumerate(lines):
            named = re.match(rf"^{self.name}\(\) - (.*)$", s) if i == 0 else None
            parameter = re.match(r"^(@\w+(?:, @\w+)*):\s*(.*)$", s)
            if named:
                summary = plain(named.group(1))
            elif parameter and not rest:
                parameters.append([plain(parameter.group(1)), plain(parameter.group(2))])
            elif parameters and not rest and s.startswith("  "):
                parameters[-1][1] += " " + plain(s.strip())
            elif rest or s.strip():
                rest.append(plain(s))
        return summary, parameters, rest


def stripped(comment):
    """The text of a comment."""
    lines = re.sub(r"^/\*+|\*/$", "", comment.strip()).split("\n")
    return "\n".join(re.sub(r"^ \* ?", "", s).rstrip() for s in lines).strip("\n").removeprefix(" ")


def sections(header):
    """The header's comment, and its text by section."""
    with open(header, encoding="utf-8") as f:
        text = f.read()
    introduction = stripped(COMMENT.match(text).group())
    body = text[text.index('extern "C" {') + len('extern "C" {\n#endif'):]
    body = body[:body.rindex("#ifdef __cplusplus")]
    parts = SECTION.split(body)
    return introduction, {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


def calls_of(text):
    """The functions of a section, and the declarations that are left without them and their comments."""
    calls, types, last = [], [], 0
    for m in CALL.finditer(text):
        before = text[last:m.start()]
        comments = list(COMMENT.finditer(before))
        comment = ""
        if comments and not before[comments[-1].end():].strip():
            comment = stripped(comments[-1].group())
            before = before[:comments[-1].start()]
        calls.append(Call(m, comment))
        types.append(before)
        last = m.end()
    types.append(text[last:])
    text = "\n\n".join(s.strip("\n") for s in types if s.strip())
    text = re.sub(r"#if defined\(__GNUC__\)\n(#.*\n)+", "", text) # how the library exports its calls
    return calls, re.sub(r"\n{3,}", "\n\n", text).strip("\n").split("\n") if text.strip() else []


def described(call):
    out = [f".It Fn {call.name}"]
    if call.summary:
        out += mdoc.text(call.summary[0].upper() + call.summary[1:] + ".")
    if call.parameters:
        out += [".Bl -tag -width indent"]
        for name, words in call.parameters:
            out += [".It " + " , ".join(f"Fa {one}" for one in name.split(", ")), *mdoc.text(words)]
        out += [".El"]
        out += [".Pp"] * bool(call.lines)
    elif call.summary and call.lines:
        out += [".Pp"]
    return out + mdoc.blocks(call.lines)


def returned(call):
    if not call.returned:
        return []
    words = call.returned
    if words[0].rstrip().endswith("or") and len(words) > 1:
        return [f".It Fn {call.name}", *mdoc.text(words[0]), *mdoc.blocks(words[1:])]
    return [f".It Fn {call.name}", *mdoc.blocks(words)]


def group_page(name, version, headers):
    header, summary, names = PAGES[name]
    introduction, parts = sections(headers[header])
    unknown = [s for s in names if s not in parts]
    if unknown:
        sys.exit(f"library_page.py: {header} has no section {', '.join(unknown)}")
    calls, types = calls_of("\n".join(parts[s] for s in names))
    library = "kvcobra kvcobra-alloc" if header == "kvcobra-alloc.h" else "kvcobra"
    out = mdoc.head(DATE, name, 3, version)
    out += [".Sh NAME", f".Nm {name} ,"]
    out += [f".Nm {c.name}{' ,' if c is not calls[-1] else ''}" for c in calls]
    out += [f".Nd {mdoc.escape(summary)}"]
    out += [".Sh LIBRARY", mdoc.line(f"cc ... $(pkg-config --cflags --libs {library})")]
    out += [".Sh SYNOPSIS", f".In {header}"]
    for call in calls:
        out += [f".Ft {mdoc.quoted(call.type)}", f".Fn {call.name} " + " ".join(mdoc.quoted(a) for a in call.arguments)]
    out += [".Sh DESCRIPTION"]
    if INTRODUCTION.get(header) == name:
        out += mdoc.blocks(introduction.split("\n"))
    else:
        out += ["Errors, threads and structs are described in", ".Xr libkvcobra 3 ."]
    out += [".Bl -tag -width indent", *(s for c in calls for s in described(c)), ".El"]
    if types:
        out += [".Ss Types and constants", *mdoc.literal(types)]
    out += [".Sh RETURN VALUES", ".Bl -tag -width indent", *(s for c in calls for s in returned(c)), ".El"]
    others = [(p, 3) for p, page in PAGES.items() if page[0] == header and p != name]
    return out + mdoc.see_also([("libkvcobra", 3), *others])


def introduction_page(version, headers):
    introduction, _ = sections(headers["kvcobra.h"])
    operators, _ = sections(headers["kvcobra-call.h"])
    out = mdoc.head(DATE, "libkvcobra", 3, version)
    out += [".Sh NAME", ".Nm libkvcobra", ".Nd a compressed, shared key\\-value cache for language models"]
    out += [".Sh LIBRARY", mdoc.line("cc ... $(pkg-config --cflags --libs kvcobra)")]
    out += [".Sh SYNOPSIS", *(f".In {h}" for h in headers), ".Pp", "The life of one text, without error handling:"]
    out += mdoc.literal(SYNOPSIS.split("\n"))
    out += [".Sh DESCRIPTION", *mdoc.blocks(introduction.split("\n"))]
    out += [".Pp", "The calls are described in groups.", "Each call also has a page that refers to its group.",
            ".Bl -tag -width kvcobra\\-requests(3)"]
    for name, (header, summary, _) in PAGES.items():
        out += [f".It Xr {name} 3", mdoc.line(f"{summary} ({header})")]
    out += [".El", ".Ss Operators", *mdoc.blocks(operators.split("\n"))]
    return out + mdoc.see_also([("kvcobra", 1), ("kvcobrad", 8), *((p, 3) for p in PAGES)])


def calls_by_page(headers):
    found = {}
    for name, (header, _, names) in PAGES.items():
        _, parts = sections(headers[header])
        found[name] = [c.name for c in calls_of("\n".join(parts.get(s, "") for s in names))[0]]
    return found


def main():
    listing = sys.argv[1] == "--list"
    folder, version = (None, None) if listing else sys.argv[1:3]
    headers = {os.path.basename(h): h for h in sys.argv[2 if listing else 3:]}
    by_page = calls_by_page(headers)
    if listing:
        print("\n".join(["libkvcobra.3", *(f"{p}.3" for p in by_page), *(f"{c}.3" for p in by_page.values() for c in p)]))
        return
    pages = {"libkvcobra": introduction_page(version, headers)}
    pages.update((name, group_page(name, version, headers)) for name in PAGES)
    pages.update((call, [f".so man3/{page}.3"]) for page, calls in by_page.items() for call in calls)
    for name, lines in pages.items():
        with open(os.path.join(folder, f"{name}.3"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
