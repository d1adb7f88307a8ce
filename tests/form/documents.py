#!/usr/bin/env python3
"""Fails where a document names what the sources lack.

    python3 tests/form/documents.py

Read are all Markdown files. Names in backquotes and commands in examples must be true:

- A link leads to a file, and to a heading of it.
- A path is a file or folder: from the document's folder, from the top, or from tests/; a name alone is that of any file.
- `kvcobra COMMAND --option`, an option of kvcobrad, kvcobra-cluster and kvcobra-lab, and an option alone are in the tables of
  options. docs/ and README.md are compared with the programs too: tests/e2e/cli/docs_check.py.
- `function()`, `KVC_NAME`, `event=NAME` and `kvcobra_metric` are in the sources, `test_name` and the cases behind it in the tests.
- A row of daemon/LIMITS.md that names a setting or a constant has its value.
- A folder with rooms names them all, a README that lists files every header, proto/README.md every request.
- The number in "four methods" and "five members of `kvc_x`" is that of the sources.
"""
import collections
import os
import re
import sys

import source

ADVICE = "Say in the document what the sources have."

# Files of users, of systems, of builds and of other projects, which documents name too; names with a word in capitals stand for others.
FOREIGN = re.compile(
    r"[/~$.]|https?:|model(-\w+)?\.(gguf|stats|table)|config\.json|kvcobrad(\.conf)?$|kvcobrad\.conf\.d|cluster\.conf|.*[A-Z]{4}|"
    r".*\b(llama|ggml|vllm|torch|transformers|openssl|cuda)[\w.-]*\.(h|c|cpp|py|so|cnf|1)\b|.*\.so(\.\d+)*$|(debhelper|usr|proc|etc|dev|share)/|"
    r"build(-\w+)?/|kvcobra/_native/|_openings\.py$")
PATH = re.compile(r"(?:[\w.-]+/)*[\w.+*\[\]-]+(?:/|\.(?:\[ch\]|\*|[a-z][a-z0-9]{0,8}))|(?:[\w-]+/)+[\w*-]+")
SUFFIXES = {"c", "h", "[ch]", "*", "cu", "md", "sh", "py", "proto", "def", "txt", "html", "js", "css", "service", "socket", "build", "map", "in", "svg"}
SETTINGS = "daemon/config/settings_table.c"
LISTED = {"base/", "cluster/", "daemon/tier/", "mover/", "proto/"}  # whose README has a row for each file
NO_ROOMS = {"mutate", "wheel"}  # folders with code for tests and packages, not for a program
SERVICES = ("alloc/", "base/", "client/", "cluster/", "daemon/", "gpu/", "mover/", "proto/")  # whose constants documents name
PUBLIC = r"(client|alloc)/kvcobra[\w-]*\.h"
OF_PYTHON = {"llama-proxy", "bench serve"}  # commands of kvcobra that the Python package runs
OTHER_OPTIONS = {"disable-hybrid-kv-cache-manager", "group-add", "shm-size"}  # of vLLM and podman
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve").split()


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Tree:
    """What the sources have; each table is read once."""

    def __init__(self, files):
        self.files = set(files)
        self.folders = {os.path.dirname(path[:i] + "x") for path in files for i in range(len(path)) if path[i - 1:i] == "/"} | {""}
        self.names = collections.Counter(os.path.basename(path) for path in files)

    def has(self, path):
        """Whether @path, which may have `*` and `[ch]`, is a file or folder."""
        if path.endswith(".[ch]"):
            return all(self.has(path[:-4] + suffix) for suffix in "ch")
        path = os.path.normpath(path)
        if "*" in path:
            pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
            return any(pattern.fullmatch(one) for one in self.files | self.folders)
        return path in self.files or path in self.folders

    def has_name(self, name):
        if name.endswith(".[ch]"):
            return all(self.has_name(name[:-4] + suffix) for suffix in "ch")
        if "*" in name:
            pattern = re.compile(re.escape(name).replace(r"\*", ".*"))
            return any(pattern.fullmatch(one) for one in self.names)
        return name in self.names


# ---- paths and links ----

def prose_of(text):
    """@text without fenced and indented examples."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", lambda m: "\n" * m.group().count("\n"), text)
    return re.sub(r"(?m)^ {4,}[^\s|-].*$", "", text)


def heading_anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def check_links(path, text, tree, read=text_of):
    findings = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not tree.has(file):
            findings.append(f"{path}: the link {target} leads nowhere")
        elif anchor and anchor not in [heading_anchor(h) for h in re.findall(r"(?m)^#+ (.*)$", read(file))]:
            findings.append(f"{path}: {file} has no heading #{anchor}")
    return findings


def check_paths(path, text, tree):
    findings = []
    folder = os.path.dirname(path)
    for quoted in re.findall(r"`([^`\n]+)`", prose_of(text)):
        for word in quoted.split() if re.match(r"(sh|python3) ", quoted) else [quoted]:
            if not PATH.fullmatch(word) or FOREIGN.match(word):
                continue
            if "/" not in word:
                if word.rpartition(".")[2] in SUFFIXES and not tree.has_name(word):
                    findings.append(f"{path}: no file is called `{word}`")
            elif not any(tree.has(os.path.join(base, word)) for base in (folder, "", "tests", "tests/unit", "daemon", os.path.dirname(folder))):
                findings.append(f"{path}: there is no `{word}`")
    return findings


# ---- commands and options ----

class Options:
    """The long options of each program, from its tables, and those that scripts and Python programs read."""

    COMMON = {"help", "usage", "version"}  # argp adds them

    def __init__(self, files, read=text_of):
        self.by_file = {}
        self.commands = {}  # text of the files cmd_*.c
        self.any = set(self.COMMON)
        texts = {path: read(path) for path in files if path.endswith((".c", ".h")) and not path.startswith("tests/unit/")}
        macros = {name: option for text in texts.values()
                  for name, option in re.findall(r'#define (\w+)(?:\([^)]*\))?[\s\\]*\{[\s\\]*"([a-z][a-z0-9-]*)"', text)}
        for path in files:
            if path in texts:
                text = texts[path]
                names = set(settings_of(text)) if path == SETTINGS else set(self.in_tables(text, macros))
                if names:
                    self.by_file[path] = names
                if re.search(r"/(cmd|lab)_\w+\.c$", path):
                    self.commands[path] = text
            elif path.endswith((".py", ".sh")):
                self.any |= set(re.findall(r"""(?<![\w-])--([a-z][a-z0-9-]+)""", read(path)))
        self.any = self.any.union(*self.by_file.values())

    @staticmethod
    def in_tables(text, macros):
        for table in re.findall(r"struct \w*option\w* \w+\[\] = \{(.*?)\n\};", text, re.DOTALL):
            yield from re.findall(r'\{\s*"([a-z][a-z0-9-]*)"', table)
            yield from (option for name, option in macros.items() if re.search(rf"\b{name}\b", table))

    def of_folder(self, folder, own=""):
        """Options of the files of @folder, but those of other commands than @own."""
        found = set(self.COMMON)
        for path, options in self.by_file.items():
            name = os.path.basename(path)[:-2]
            if path.startswith(folder) and (not re.match(r"cmd_|\w+_arguments$", name) or name in (f"cmd_{own}", f"{own}_arguments")):
                found |= options
        return found

    def of_command(self, program, command):
        """Options of a command; None: there is no such command."""
        if program in ("kvcobrad", "kvcobra-cluster"):
            return self.of_folder("daemon/config/" if program == "kvcobrad" else "cluster/")
        name = command.replace("-", "_").replace(" ", "_")
        tops = ("lab/", "tools/eval/") if program == "kvcobra-lab" else ("tools/", "lab/bench/") if name.startswith("bench") else ("tools/",)
        files = [path for path in self.commands if path.startswith(tops) and re.search(rf"/(cmd|lab)_{name}\.c$", path)]
        files = files or [path for path, text in self.commands.items() if path.startswith(tops) and f'"{command}",' in text]
        if not files:
            return None
        own = os.path.basename(files[0])[4:-2]
        return self.of_folder("tools/command/").union(*(self.of_folder(os.path.dirname(path) + "/", own) for path in files),
                                                      *(self.of_folder(top, own) for top in tops if top == "tools/eval/"))


def settings_of(text):
    """{name: text of its row} of the table of settings."""
    starts = list(re.finditer(r'(?:\.name = |\bCOUNT\(\s*|HOST_BYTES\(\s*|BYTES_OF\(\w+,\s*|\bROW\(\s*)"([a-z][a-z0-9-]*)"', text))
    ends = [one.start() for one in starts[1:]] + [len(text)]
    return {one.group(1): text[one.start():end] for one, end in zip(starts, ends)}


def examples_of(text):
    """Command lines: what stands in backquotes, and lines of examples."""
    yield from re.findall(r"`([^`\n]+)`", text)
    for block in re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```", text):
        yield from block.split("\n")
    for line in re.findall(r"(?m)^ {4,}(.+)$", text):
        yield line


def errors_of_command(program, words, options):
    command = words[0] if words and re.fullmatch(r"[a-z][a-z-]+", words[0]) else ""
    if command == "bench" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
        command += " " + words[1]
    if program in ("kvcobra", "kvcobra-lab") and command in ("", "help"):
        return
    known = options.any if command in OF_PYTHON else options.of_command(program, command)
    if known is None:
        yield f"{program} has no command {command}"
        return
    for word in words:
        option = re.match(r"--([a-z][a-z-]+)", word)
        if option and option.group(1) not in known:
            yield f"{program} {command} has no option {option.group()}"


def check_options(path, text, options):
    findings = set()
    for example in examples_of(text):
        if re.fullmatch(r"--[a-z][a-z-]+( [^`]*)?", example) and example[2:].split()[0].split("=")[0] not in options.any | OTHER_OPTIONS:
            findings.add(f"{path}: no program has the option {example.split()[0]}")
        for match in re.finditer(r"(?:^|[\s($])(kvcobrad|kvcobra-lab|kvcobra-cluster|kvcobra) ([^#|;&<>]*)", example):
            if not re.search(r"(?:^|\s)(apt|pip|install|podman|docker|systemd-\w+|-m) [^;]*$", example[:match.start(1)]):
                findings.update(f"{path}: {one}" for one in errors_of_command(match.group(1), match.group(2).split(), options))
    return sorted(findings)


# ---- constants, limits, defaults ----

class Constants:
    """The whole numbers that #define and enumerators of the product give a name."""

    def __init__(self, files, read=text_of):
        self.expressions = collections.defaultdict(set)
        for path in files:
            if path.endswith((".c", ".h")) and path.startswith(SERVICES):
                text = re.sub(r"/\*.*?\*/|//[^\n]*", "", read(path).replace("\\\n", " "), flags=re.DOTALL)
                for name, value in re.findall(r"(?m)^#define ([A-Z]\w+)[ \t]+(.+)$", text) + re.findall(r"\b([A-Z][A-Z0-9_]+) = ([^,;{}\n]+)", text):
                    self.expressions[name].add(value)

    def value(self, expression, depth=0):
        """The value of a C expression of whole numbers and known names; None: it is another one."""
        text = re.sub(r"UINT\d+_C\((\w+)\)", r"\1", re.sub(r"\((size_t|u?int\d+_t|unsigned)\)", "", expression))
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", text)
        for name in set(re.findall(r"[A-Za-z_]\w*", re.sub(r"0x[0-9a-fA-F]+", "", text))):
            values = {self.value(one, depth + 1) for one in self.expressions.get(name, ())} if depth < 8 else set()
            if len(values) != 1 or None in values:
                return None  # two files give the name two values: no document can mean one of them
            text = re.sub(rf"\b{name}\b", str(values.pop()), text)
        if not re.fullmatch(r"[0-9a-fA-Fx\s()+*/<>-]+", text):
            return None
        try:
            return int(eval(text.replace("/", "//"), {"__builtins__": {}}))  # digits and operators only
        except (SyntaxError, ZeroDivisionError):
            return None


UNITS = {"": (1,), "KiB": (1 << 10,), "MiB": (1 << 20,), "GiB": (1 << 30,), "ms": (1,), "s": (1000, 1), "minutes": (60000, 60), "minute": (60000, 60),
         "M": (1 << 20,), "K": (1 << 10,), "G": (1 << 30,), "%": (1,)}


def values_of(text):
    """The numbers in @text, in bytes, milliseconds and seconds where they have a unit; halves and eighths of them count too."""
    values = set()
    for number, unit in re.findall(r"(?<![\w./-])(\d+(?: \d{3})*) ?(KiB|MiB|GiB|ms|s|minutes?|K|M|G|%)?(?![\w/])", text):
        values |= {int(number.replace(" ", "")) * factor for factor in UNITS[unit]}
    return values | {number for word, number in zip(NUMBERS, range(13)) if number > 1 and re.search(rf"\b{word}\b", text)}


def default_of(row, constants):
    """The number that a setting has by default, None if its default is no number or that of another setting."""
    if "default_from" in row:
        return None
    positional = re.match(r'(?:COUNT|HOST_BYTES|BYTES_OF)\(([^"]*)"[^"]*",(.*)', row, re.DOTALL)
    if positional:
        arguments = [one.strip() for one in positional.group(2).split(",")]
        return constants.value(arguments[1 if row.startswith("HOST_BYTES") else 2])
    match = re.search(r"\.number = ([^,]+),", row)
    return constants.value(match.group(1)) if match else None


def check_limits(path, text, settings, constants):
    """Rows with a column "setting"; and VALUE (`NAME`) everywhere."""
    findings = []
    for row in re.findall(r"(?m)^\|(.*)\|$", text):
        cells = [cell.strip() for cell in row.split(" | ")]
        if len(cells) < 5:
            continue
        numbers = values_of(" ; ".join(cells[:-2]))
        for name in re.findall(r"`([A-Z][A-Z0-9_]+|[a-z][a-z0-9-]+)`", cells[-2]):
            if name in settings:
                value = default_of(settings[name], constants)
                if value and f"`{name}`" not in " ".join(cells[:-2]) and value not in numbers:
                    findings.append(f"{path}: the row of \"{cells[0]}\" lacks {value}, the default of {name}")
            elif name.isupper():
                value = constants.value(name)
                if value is None:
                    findings.append(f"{path}: no constant is called {name}")
                elif value not in numbers:
                    findings.append(f"{path}: the row of \"{cells[0]}\" lacks {value}, the value of {name}")
            elif "-" in name:
                findings.append(f"{path}: kvcobrad has no setting {name}")
    return findings


def check_values(path, text, constants):
    findings = []
    for written, name in re.findall(r"((?:[\w.%]+ ){1,2})\(`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`\)", text):
        value = constants.value(name)
        if re.match(r"\d|(?:%s) " % "|".join(NUMBERS), written) and value not in values_of(written.strip()):
            findings.append(f"{path}: {written}({name}), which is {value} in the sources")
    return findings


# ---- names ----

def check_names(path, text, words):
    """Functions, constants of the public headers, events and metrics in backquotes."""
    findings = []
    for name in re.findall(r"`[^`\n]*?\b([a-z]\w+_\w+)\(\)`", text):
        if name not in words:
            findings.append(f"{path}: no function is called {name}()")
    for name in re.findall(r"`(KVC_[A-Z0-9_]+|kvcobra_[a-z_]+_(?:total|bytes|seconds))`", text):
        if name not in words and name.partition("kvcobra_")[2] not in words:
            findings.append(f"{path}: nothing is called {name}")
    for name in re.findall(r"(?:`event=|\blogs? `)([a-z]+(?:-[a-z]+)+)`", text):
        if name not in words:
            findings.append(f"{path}: no program logs event={name}")
    for name in re.findall(r"`((?:[a-z]+-)+(?:bytes|ms|s|extents|threads|queue|dir|pool|tenant|tenants|session|socket|file|address))(?: = [^`]*)?`", text):
        if name not in words:
            findings.append(f"{path}: there is no setting {name}")
    return findings


def check_tests(path, text, files, words, read):
    """`test_name` is a file or a function; "`test_name.c` this_case, that_case" are cases of that file."""
    findings = []
    for name in re.findall(r"`(test_\w+)`", text):
        if name not in words and not any(os.path.splitext(os.path.basename(file))[0] == name for file in files):
            findings.append(f"{path}: no test is called {name}")
    for test, cases in re.findall(r"`(?:\S*/)?(test_\w+)(?:\.c)?` ([a-z0-9_]+_[a-z0-9_]+(?:, [a-z0-9_]+_[a-z0-9_]+)*)", text):
        of_test = [read(file) for file in files if os.path.basename(file) == test + ".c"]
        findings += [f"{path}: {test} has no case {case}" for case in cases.split(", ")
                     if of_test and not any(re.search(rf"\b(?:test_|{test}_)?{case}\b", one) for one in of_test)]
    return findings


# ---- lists that must be complete, and counts ----

def rooms_of(path, files):
    folder = os.path.dirname(path) + "/"
    return sorted({file[len(folder):].split("/")[0] for file in files if file.startswith(folder) and "/" in file[len(folder):]
                   and file.endswith((".c", ".h", ".cu"))} - NO_ROOMS)


def check_rooms(path, text, files):
    """The table under "Rooms" has a row for each folder with code."""
    section = text.partition("## Rooms\n")[2].partition("\n## ")[0]
    rows = " ".join(re.findall(r"(?m)^\| ([^|]*) \|", section))
    return [f"{path}: the table of rooms has no row for {room}/" for room in rooms_of(path, files) if section and f"`{room}/`" not in rows]


def check_files(path, text, files):
    """A README that lists the files of its folder names every header."""
    folder = os.path.dirname(path) + "/"
    headers = [os.path.basename(file)[:-2] for file in files if folder in LISTED and re.fullmatch(rf"{folder}\w+\.h", file)]
    return [f"{path}: {header}.h has no row" for header in headers if not re.search(rf"\b{header}\b", text)]


def requests_of(proto):
    body = proto.partition("message Request {")[2].partition("oneof body {")[2].partition("}")[0]
    return re.findall(r"(?m)^ +(\w+) \w+ = \d+;", body)


def check_requests(path, text, proto):
    rows = " ".join(re.findall(r"(?m)^\| ([A-Z][^|]*) \|", text))
    return [f"{path}: the table of messages has no row for {name}" for name in requests_of(proto) if not re.search(rf"\b{name}\b", rows)]


def names_in(read, path, array):
    return re.findall(r'"([^"]+)"', re.search(rf"{array}\[\] = \{{(.*?)\}};", read(path), re.DOTALL).group(1))


def counts_of(tree, read=text_of):
    """{words behind a number in a document: how many there are}"""
    solve_names = [path for path in tree.files if os.path.basename(path) == "solve_names.c"]
    return {
        r"methods": len(names_in(read, solve_names[0], "method_names")) if solve_names else 0,
        r"settings": len(settings_of(read(SETTINGS))),
        r"requests of `kvcobra\.proto`": len(requests_of(read("proto/kvcobra.proto"))),
        r"(?:installed|public) headers": len([path for path in tree.files if re.fullmatch(PUBLIC, path)]),
    }


def check_counts(path, text, counts):
    findings = []
    for words, n in counts.items():
        for number, noun in re.findall(rf"(?i)\b(\d+|{'|'.join(NUMBERS[2:])}) ({words})\b", text):
            if (int(number) if number.isdigit() else NUMBERS.index(number.lower())) != n:
                findings.append(f"{path}: {number} {noun}, but there are {n}")
    return findings


def members_of(headers):
    """{struct: number of its members} of the public headers; its size, and members that are not used yet, are not counted."""
    found = {}
    for text in headers:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for body, name in re.findall(r"typedef struct \w+ \{([^{}]*)\} (\w+);", text):
            found[name] = sum(1 + re.sub(r"\([^()]*\)", "", one).count(",") for one in body.split(";")
                              if one.strip() and not re.search(r"\b(struct_bytes|unused\w*)\b", one))
    return found


def check_members(path, text, members):
    findings = []
    for number, name in re.findall(rf"(?i)\b(\d+|{'|'.join(NUMBERS[2:])}) (?:numbers|members|fields) of `(\w+)`", text):
        n = int(number) if number.isdigit() else NUMBERS.index(number.lower())
        if name in members and members[name] != n:
            findings.append(f"{path}: {number} members of {name}, but it has {members[name]}")
    return findings


# ---- all documents ----

def words_of(files, read=text_of):
    """Every name in the sources, with hyphens and without."""
    words = set()
    for path in files:
        if path.endswith((".c", ".h", ".cu", ".def", ".py", ".proto", ".js", ".in", ".build")) and not path.startswith("tests/form/"):
            text = read(path)
            words.update(re.findall(r"[A-Za-z_][\w-]*", text), re.findall(r"\w+", text))
    return words


def check(documents, files, read=text_of):
    tree, options, constants, words = Tree(files), Options(files, read), Constants(files, read), words_of(files, read)
    settings, counts, proto = settings_of(read(SETTINGS)), counts_of(tree, read), read("proto/kvcobra.proto")
    members = members_of(read(path) for path in files if re.fullmatch(PUBLIC, path))
    findings = []
    for path in documents:
        text = read(path)
        findings += check_links(path, text, tree, read)
        findings += check_counts(path, text, counts) + check_members(path, text, members)
        if path == "CONVENTIONS.md":
            continue  # its examples are sketches
        findings += check_paths(path, text, tree) + check_options(path, text, options)
        findings += check_values(path, text, constants) + check_names(path, text, words)
        findings += check_tests(path, text, files, words, read)
        if path.startswith("daemon/") and path.endswith("LIMITS.md"):
            findings += check_limits(path, text, settings, constants)
        if path.endswith("README.md"):
            findings += check_rooms(path, text, files) + check_files(path, text, files)
        if path == "proto/README.md":
            findings += check_requests(path, text, proto)
    return findings


def main():
    source.root()
    files = [path for path in source.git("ls-files").split("\n") if os.path.isfile(path)]
    return source.finish(check([path for path in files if path.endswith(".md")], files), ADVICE)


if __name__ == "__main__":
    sys.exit(main())
