#!/usr/bin/env python3
"""Fails where C, C++ or CUDA code of the product or of the tests does not have the agreed form.

    python3 tests/form/shape.py

- clang-format with the project's configuration changes nothing.
- No file is longer than 600 lines, but for one public header, no function than 65, no line of a comment than 110 columns
  (clang-format breaks code, not comments: their lists and formulas keep their lines).
- No ?: stands inside an operand of another one, and none selects the function that is called.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys

import source

ADVICE = ("clang-format -i FILE lays out code; a file or function that is too long has a second subject that can move out; "
          "if and switch replace a nested ?:.")
FILE_LINES_MAX = 600
# The header of inference is what a user reads first: a second one would only say where the rest is.
LINES_MAX_OF_FILE = {"client/kvcobra.h": 645}
FUNCTION_LINES_MAX = 65
COMMENT_COLUMNS_MAX = 110


def check_lengths(file):
    findings = []
    n_max = LINES_MAX_OF_FILE.get(file.path, FILE_LINES_MAX)
    if file.n_lines > n_max:
        findings.append(f"{file.path}: {file.n_lines} lines, more than {n_max}")
    for function in file.functions:
        n = function.last_line - function.first_line + 1
        if n > FUNCTION_LINES_MAX:
            findings.append(f"{file.path}:{function.first_line}: {function.name}() has {n} lines, more than {FUNCTION_LINES_MAX}")
    return findings


def check_widths(path, text):
    """Lines of comments that are too wide."""
    return [f"{path}:{number}: {len(line)} columns, more than {COMMENT_COLUMNS_MAX}"
            for number, line in enumerate(text.split("\n"), 1)
            if len(line) > COMMENT_COLUMNS_MAX and ("/*" in line or "*/" in line or line.lstrip().startswith(("*", "//")))]


def check_conditionals(file):
    """Checks each bracket. An element, which is the code between two commas or semicolons, may have only one ?:."""
    findings = []
    stack = [Element(is_group=False, in_operand=False)]
    before = None
    for token in file.tokens:
        element = stack[-1]
        text = token.text
        if text in ("(", "[", "{"):
            if text == "(" and before and before.text == ")" and element.closed_group_with_conditional:
                findings.append(f"{file.path}:{token.line}: a ?: selects the function that is called")
            is_group = text == "(" and not is_operand_end(before)
            is_statement = text == "{" and element.is_block
            stack.append(Element(is_group, element.n_conditionals > 0 or (element.in_operand and not is_statement)))
            stack[-1].is_block = text == "{"
        elif text in (")", "]", "}"):
            closed = stack.pop() if len(stack) > 1 else element
            stack[-1].closed_group_with_conditional = closed.is_group and closed.had_conditional
            if stack[-1].closed_group_with_conditional:
                stack[-1].has_group_with_conditional = True
            if text == "}" and stack[-1].is_block:
                stack[-1].restart()
        elif text in (",", ";"):
            element.restart()
        elif text == "?":
            if element.n_conditionals or element.in_operand or element.has_group_with_conditional:
                findings.append(f"{file.path}:{token.line}: a ?: inside another one")
            element.n_conditionals += 1
            element.had_conditional = True
        before = token
    return findings


class Element:
    """The code between two commas or semicolons of a bracket. The outermost level counts as a block."""

    def __init__(self, is_group, in_operand):
        self.is_group = is_group  # parentheses that only group
        self.is_block = True
        self.in_operand = in_operand  # the bracket stands in an operand of a ?:
        self.had_conditional = False
        self.closed_group_with_conditional = False
        self.restart()

    def restart(self):
        self.n_conditionals = 0
        self.has_group_with_conditional = False


def is_operand_end(token):
    """True if a parenthesis behind @token holds arguments or the condition of a statement."""
    return token is not None and (token.kind == "name" and token.text not in ("return", "else", "case") or token.text in (")", "]"))


def badly_formatted(paths):
    """The first change that clang-format would make in each of @paths."""
    result = subprocess.run(["clang-format", "--dry-run", "-Werror", *paths], capture_output=True, text=True)
    first = {}
    for line in result.stderr.split("\n"):
        path, colon, _ = line.partition(":")
        if colon and path in paths and "error:" in line:
            first.setdefault(path, line)
    if result.returncode != 0 and not first:
        return [f"clang-format ended with {result.returncode}: {result.stderr.strip()[:200]}"]
    return list(first.values())


def check_format(paths):
    groups = [paths[i:i + 32] for i in range(0, len(paths), 32)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [finding for findings in pool.map(badly_formatted, groups) for finding in findings]


def main():
    source.root()
    paths = source.c_files()
    findings = []
    for path in paths:
        file = source.read(path)
        findings += check_lengths(file) + check_conditionals(file)
        with open(path, encoding="utf-8") as f:
            findings += check_widths(path, f.read())
    if shutil.which("clang-format"):
        findings += check_format(paths)
    status = source.finish(findings, ADVICE)
    if status == 0 and not shutil.which("clang-format"):
        print("skipped: clang-format is not installed, so the layout was not checked (sh tools/setup.sh test)")
        return source.SKIPPED
    return status


if __name__ == "__main__":
    sys.exit(main())
