#!/usr/bin/env python3
"""Fails where more than two product files form a circle, by includes or by the functions that they use.

    python3 tests/form/circles.py

A file uses another one if it names a function that the other one defines and exports, in a call or as a callback. A .c file
and the header of the same name count as one file. Members of structs, local variables and static functions of the same name
are not counted. Prints each circle with the functions that close it.
"""
import collections
import os
import sys

import source

ADVICE = ("Move the functions that an upper file offers to a lower one into a file below both, or hand a callback down "
          "(DESIGN.md section 2).")


def stem(path):
    return os.path.splitext(path)[0]


def include_graph(files):
    known = {f.path for f in files}
    graph = {f.path: set() for f in files}
    for file in files:
        for name, quoted, _ in file.includes:
            beside = os.path.normpath(os.path.join(os.path.dirname(file.path), name))
            graph[file.path].update(path for path in (name, beside) if quoted and path in known and path != file.path)
    return graph


def definitions(files):
    """{name: files} of functions that other files can use; in headers these are the inline ones."""
    names = collections.defaultdict(set)
    for file in files:
        for function in file.functions:
            if not function.is_static or source.is_header(file.path):
                names[function.name].add(file.path)
    return names


def reachable(graph, first):
    """Files that @first includes, directly or not."""
    found, work = set(), [first]
    while work:
        new = graph[work.pop()] - found
        found |= new
        work.extend(new)
    return found


def used(tokens):
    """Names in @tokens that are not members: not behind a dot or an arrow."""
    return {token.text for i, token in enumerate(tokens)
            if token.kind == "name" and (i == 0 or tokens[i - 1].text not in (".", "->", "struct", "union", "enum", "goto"))}


def call_graph(files):
    """{file: {file: names of functions}}"""
    names, includes = definitions(files), include_graph(files)
    graph = {}
    for file in files:
        own = {f.name for f in file.functions} | source.file_variables(file)
        found = initialisers(file) - own
        for function in file.functions:
            found |= used(function.body) - own - source.local_names(function)
        headers = reachable(includes, file.path)
        graph[file.path] = collections.defaultdict(set)
        for name in found & names.keys():
            for path in names[name] - {file.path}:
                if not source.is_header(path) or path in headers:
                    graph[file.path][path].add(name)
    return graph


def initialisers(file):
    """Names in the braces behind `=` outside functions: tables of operations and the like."""
    names, i, tokens = set(), 0, file.outside
    while i + 1 < len(tokens):
        if tokens[i].text == "=" and tokens[i + 1].text == "{":
            end = source.closing(tokens, i + 1)
            names |= used(tokens[i + 1:end])
            i = end
        i += 1
    return names


def describe(graph, circle):
    lines = []
    for path in circle:
        for other in sorted(set(graph[path]) & set(circle)):
            what = graph[path][other] if isinstance(graph[path], dict) else ()
            lines.append(f"    {path} -> {other} {', '.join(sorted(what)[:6])}".rstrip())
    return "\n".join(lines)


def check(files):
    findings = []
    for what, graph in (("includes", include_graph(files)), ("calls", call_graph(files))):
        for circle in source.components(graph):
            if len({stem(path) for path in circle}) > 2:
                findings.append(f"a circle of {len(circle)} files by {what}:\n{describe(graph, circle)}")
    return findings


if __name__ == "__main__":
    source.root()
    sys.exit(source.finish(check(source.product()), ADVICE))
