"""The project's C, C++ and CUDA files, read for the tests of this folder: tokens, functions, includes and struct tags.

This is not a compiler. It parses enough of the language to find the definitions of functions in formatted code, and it
reads every branch of `#if`. The scripts of this folder must not judge code that it does not see, such as the expansion of a
macro.
"""
import collections
import os
import re
import subprocess
import sys

SKIPPED = 77  # meson's exit status of a test that could not run
C_FILES = (".c", ".h", ".cu", ".cuh", ".cpp")
PRODUCT = ("alloc", "base", "client", "cluster", "daemon", "examples", "gpu", "lab", "mover", "proto", "tools")

# One loop compiled once per instruction set, and the headers that it is written in: they repeat each other's names by design.
PER_INSTRUCTION_SET = re.compile(r"(gpu/cpu|lab/bench|tools/engine)/(\w+_avx\w*\.c|(\w+_simd|decode_(256|512))\.h)")

# Device code: each .cu is a program of its own, and everything in it and in its headers is local to that program.
KERNELS = ("gpu/cuda/kernels/", "lab/cuda/kernels/")

TOKEN = re.compile(
    r"""(?P<blank>\s+|/\*.*?\*/|//[^\n]*)
      | (?P<directive>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>[uUL]?'(?:\\.|[^'\\\n])*')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|[\w.'])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign>->|\+\+|--|<<=|>>=|\.\.\.|::|[-+*/%&|^!=<>]=|&&|\|\||<<|>>|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE)

# Words before a parenthesis that do not name a function.
NOT_FUNCTIONS = {"if", "while", "for", "switch", "return", "sizeof", "_Alignof", "alignof", "__attribute__", "__declspec__",
                 "_Static_assert", "static_assert", "__launch_bounds__", "__align__", "_Alignas", "alignas", "_cleanup_",
                 "__asm__", "asm", "typeof", "__typeof__", "_Generic", "defined", "decltype", "do", "else", "case"}
KEYWORDS = {"return", "goto", "else", "case", "default", "break", "continue", "if", "while", "for", "do", "switch", "sizeof",
            "typedef", "template", "using", "namespace"}

Token = collections.namedtuple("Token", "kind text line")


class Function:
    """A definition: its name, whether it is static, its lines, the tokens of its parameters and of its body.

    Macros may hide the word static (`inline_always`), so definitions in headers and per instruction set count as static too.
    """

    def __init__(self, name, is_static, first_line, last_line, parameters, body):
        self.name = name
        self.is_static = is_static
        self.first_line = first_line
        self.last_line = last_line
        self.parameters = parameters
        self.body = body


class Source:
    """One file: .functions, .includes as (name, is_quoted, line), .tags as (tag, line), .outside: tokens outside functions."""

    def __init__(self, path, text):
        self.path = path
        self.n_lines = text.count("\n")
        self.includes = []
        self.tokens = []
        for token in tokens_of(text):
            if token.kind == "directive":
                match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', token.text)
                if match:
                    self.includes.append((match.group(2), match.group(1) == '"', token.line))
            else:
                self.tokens.append(token)
        self.functions, self.outside = split(self.tokens)
        for function in self.functions:
            function.is_static |= is_header(path) or path.startswith(KERNELS) or bool(PER_INSTRUCTION_SET.fullmatch(path))
        self.tags = [(self.tokens[i + 1].text, self.tokens[i + 1].line) for i in range(len(self.tokens) - 2)
                     if self.tokens[i].text in ("struct", "union", "enum") and self.tokens[i + 1].kind == "name"
                     and self.tokens[i + 2].text == "{"]


def is_header(path):
    return path.endswith((".h", ".cuh"))


def tokens_of(text):
    line = 1
    for match in TOKEN.finditer(text):
        kind, part = match.lastgroup, match.group()
        if kind != "blank":
            yield Token(kind, part, line)
        line += part.count("\n")


def closing(tokens, start):
    """Index of the bracket that closes the one at @start; the last index if there is none."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].text in ("(", "[", "{"):
            depth += 1
        elif tokens[i].text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return i
    return len(tokens) - 1


def split(tokens):
    """(functions, other tokens) of a file. A function is NAME ( ... ) [ATTRIBUTE...] { at the outermost level."""
    functions, outside = [], []
    start = i = 0  # @start: the first token of the declaration that @i is in
    while i < len(tokens):
        text = tokens[i].text
        if text == "{" and i > start and (tokens[i - 1].kind == "string" or tokens[start].text == "namespace"):
            i += 1  # extern "C" and namespaces hold declarations
            start = i
            continue
        if text == "{":
            end = closing(tokens, i)
            name_at = function_name(tokens, start, i)
            if name_at is None:
                outside.extend(tokens[start:end + 1])
                start = i = end + 1
                continue
            head = [t.text for t in tokens[start:name_at]]
            functions.append(Function(tokens[name_at].text, "static" in head, tokens[start].line, tokens[end].line,
                                      tokens[name_at + 1:i], tokens[i:end + 1]))
            start = i = end + 1
            continue
        if text in ("(", "["):
            i = closing(tokens, i) + 1
            continue
        i += 1
        if text in (";", "}"):
            outside.extend(tokens[start:i])
            start = i
    outside.extend(tokens[start:])
    return functions, outside


def function_name(tokens, start, brace):
    """Index of the name of the function whose body opens at @brace, None if no function does."""
    found = None
    i = start
    while i < brace:
        text = tokens[i].text
        if text == "=":
            return None
        if text == "(":
            before = tokens[i - 1] if i > start else None
            if before and before.kind == "name" and before.text not in NOT_FUNCTIONS:
                found = i - 1
            i = closing(tokens, i)
        i += 1
    return found


def local_names(function):
    """Names of parameters and local variables of @function, which hide functions of the same name."""
    names = set()
    parts = function.parameters
    for i in range(1, len(parts)):
        if parts[i].kind == "name" and i + 1 < len(parts) and parts[i + 1].text in (",", ")", "["):
            names.add(parts[i].text)
    body = function.body
    for i, token in enumerate(body):
        if token.text in ("{", "}", ";") or (token.text == "(" and i and body[i - 1].text == "for"):
            names.update(declared(body, i + 1))
    return names


def declared(tokens, i):
    """Names that the declaration at @i declares; none if a statement stands there."""
    n_words, names = 0, []
    while i < len(tokens):
        token = tokens[i]
        if token.text == "_cleanup_" or token.text == "__attribute__":
            i = closing(tokens, i + 1) + 1
            continue
        following = tokens[i + 1].text if i + 1 < len(tokens) else ";"
        if token.kind != "name":
            if token.text != "*" or n_words == 0:
                return names
            i += 1
            continue
        if token.text in KEYWORDS:
            return names
        if n_words and following in ("=", ";", ",", "[", ":"):
            names.append(token.text)
            i = after_declarator(tokens, i + 1)
            if i is None:
                return names
            continue
        n_words += 1
        i += 1
    return names


def after_declarator(tokens, i):
    """Index behind the comma that ends the declarator at @i, None if a semicolon ends it."""
    while i < len(tokens):
        if tokens[i].text == ",":
            return i + 1
        if tokens[i].text in (";", ")", ":"):
            return None
        if tokens[i].text in ("(", "[", "{"):
            i = closing(tokens, i)
        i += 1
    return None


def file_variables(source):
    """Names of variables and static functions of the file's own scope."""
    names = set()
    for i, token in enumerate(source.outside):
        if i == 0 or token.text in (";", "}"):
            at = i if i == 0 else i + 1
            names.update(declared(source.outside, at))
    return names


def root():
    """Goes to the top of the checkout, or ends the program as skipped."""
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    result = git("rev-parse", "--show-toplevel")
    if result is None:
        print("skipped: the sources are not a git checkout, or git is not installed")
        sys.exit(SKIPPED)
    os.chdir(result.strip())


def git(*arguments):
    """Output of git; None if it fails. A checkout of another user is read too: check.sh may run as root."""
    try:
        return subprocess.run(["git", "-c", "safe.directory=*", *arguments], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def c_files(folders=()):
    """Paths of the C, C++ and CUDA files of the checkout below @folders, also of those not added to git yet."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "--", *folders) or ""
    return sorted(p for p in set(listed.split("\n")) if p.endswith(C_FILES) and os.path.isfile(p))


def read(path):
    with open(path, encoding="utf-8") as file:
        return Source(path, file.read())


def product():
    """Every file of the product's folders."""
    return [read(path) for path in c_files(PRODUCT)]


def components(graph):
    """Strongly connected sets of more than one node of the graph {node: {node: ...}}, by Tarjan's algorithm without recursion."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for first in sorted(graph):
        if first in index:
            continue
        work = [(first, iter(sorted(graph[first])))]
        index[first] = low[first] = len(index)
        stack.append(first)
        on_stack.add(first)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(sorted(graph.get(successor, ())))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
    return found


def finish(findings, advice):
    """Prints @findings and a sentence about their repair. Returns the exit status."""
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} findings. {advice}")
    return 1 if findings else 0
