#!/usr/bin/env python3
"""Writes kvcobra/_declarations.py: the declarations of public headers, in the form that cffi reads.

    python3 generate_declarations.py OUTPUT HEADER...

setup.py and meson run this program at build time. No preprocessor is needed: the headers include only <stddef.h> and
<stdint.h>, their conditions concern C++ and compilers, and their constants are integer expressions. Anything else stops the
program with a sentence, so a header cannot outgrow it silently.
"""
import ast
import operator
import os
import re
import sys

OPERATIONS = {ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Add: operator.add, ast.Sub: operator.sub,
              ast.Mult: operator.mul, ast.BitOr: operator.or_}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
SYSTEM_HEADERS = ("<stddef.h>", "<stdint.h>")


class HeaderError(Exception):
    pass


def integer(text, known):
    """The value of a constant expression of integers and of the constants @known."""
    tree = ast.parse(re.sub(r"\b(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*\b", r"\1", text), mode="eval").body

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in known:
            return known[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise HeaderError(f"'{text}' is not an expression of integers")

    return value(tree)


def define(line, constants, empty):
    """Records one #define: a constant, or a macro without a value in this reading."""
    match = re.fullmatch(r"#\s*define\s+(\w+)(\([^)]*\))?\s*(.*)", line)
    if match is None or match.group(2):
        raise HeaderError(f"'{line}' is not the definition of a constant")
    name, text = match.group(1), match.group(3).strip()
    if text:
        constants[name] = integer(text, constants)
    else:
        empty.add(name)


def strip(text, constants, empty=None):
    """The declarations of one header. Its constants are added to @constants; those that are new come first. @empty: names of
    macros without a value, of headers before it and of this one."""
    before = set(constants)
    empty = set() if empty is None else empty
    lines, active = [], [True]
    for line in COMMENT.sub(" ", text).replace("\\\n", " ").split("\n"):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if directive is None:
            if all(active):
                lines.append(line)
            continue
        word, rest = directive.group(1), directive.group(2).strip()
        if word in ("if", "ifdef"):
            if not re.search(r"__cplusplus|__GNUC__", rest):
                raise HeaderError(f"the condition '{line.strip()}' is unknown")
            active.append(False)
        elif word == "ifndef":
            active.append(True)
        elif word == "else":
            active[-1] = not active[-1]
        elif word == "endif":
            active.pop()
        elif not all(active):
            continue
        elif word == "define":
            define(line.strip(), constants, empty)
        elif word == "include":
            if rest not in SYSTEM_HEADERS and not rest.startswith('"'):
                raise HeaderError(f"the include {rest} is unknown")
        else:
            raise HeaderError(f"the directive '{line.strip()}' is unknown")
    code = "\n".join(line.rstrip() for line in lines)
    for name in empty:
        code = re.sub(rf"\b{name}\b", "", code)
    code = re.sub(r"[ \t]+\n", "\n", re.sub(r"(?m)^[ \t]+(?=\w)", lambda m: m.group().replace("\t", "    "), code))
    code = re.sub(r"(?m)^ (?=\S)", "", re.sub(r"\n{2,}", "\n", code)).strip()
    new = [f"#define {name} {value}" for name, value in constants.items() if name not in before]
    return "\n".join(new + [code])


def declarations(paths):
    constants, empty = {}, set()
    parts = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            try:
                parts.append(strip(file.read(), constants, empty))
            except (HeaderError, SyntaxError) as e:
                raise HeaderError(f"{path}: {e}") from e
    return "\n".join(parts)


def module(paths):
    """The text of the Python module."""
    names = ", ".join(os.path.basename(path) for path in paths)
    return (f'"""Declarations of {names}, written by generate_declarations.py. Do not edit."""\n\n'
            f'DECLARATIONS = """\n{declarations(paths)}\n"""\n')


def replace(output, text):
    """Writes @text, unless the file has it already. A file appears whole or not at all."""
    try:
        with open(output, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        pass
    temporary = f"{output}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, output)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write(output, paths):
    """Writes the module."""
    replace(output, module(paths))


def main(arguments):
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        write(arguments[0], arguments[1:])
    except (HeaderError, OSError) as e:
        print(f"generate_declarations: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
