#!/usr/bin/env python3
"""Checks the pages of docs/ and the top-level README: links, pictures, and that commands, options and settings exist.

    docs_check.py KVCOBRA KVCOBRAD ROOT
"""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

failures = []


def check(good, sentence):
    if not good:
        failures.append(sentence)


def help_of(*command):
    out = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    return out.stdout if out.returncode == 0 else ""


def check_links(root, page, text):
    """Links are files; names of files in backquotes too, as far as they have a folder of the project."""
    folder = os.path.dirname(page)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        check(os.path.exists(os.path.join(folder, target)), f"{page}: the link {target} leads nowhere")
    for target in re.findall(r"`([a-z]+/[A-Za-z0-9_./-]+\.(?:md|h|c|sh|py))`", text):
        check(os.path.exists(os.path.join(root, target)), f"{page}: there is no {target}")


def check_picture(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    tree = xml.etree.ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    check(tree.find(f"{space}title") is not None, f"{path} has no title")
    check("prefers-color-scheme: dark" in text, f"{path} has no colours for a dark page")
    check("script" not in text and "href" not in text, f"{path} loads or runs something")
    width = float(tree.get("width"))
    for one in tree.iter(f"{space}rect"):
        check(float(one.get("x")) + float(one.get("width")) <= width, f"{path}: a box ends behind the right edge")


def described_by(root, command):
    """What describes the options: --help, or the man page of a program of the Python package, which may not be installed."""
    page = os.path.join(root, "client", "python", "-".join(["kvcobra", *command[1:]]) + ".1")
    if os.path.exists(page):
        with open(page, encoding="utf-8") as f:
            return re.sub(r"Fl \\-", "--", f.read())
    return help_of(*command)


def check_commands(programs, root, page, text):
    kvcobra, kvcobrad = programs
    found = re.findall(r"(?m)(?:^ {4,}|`|: |\$\()(kvcobrad?) ([^`\n#]*)", text)
    for program, words in found:
        arguments = words.split()
        command = [kvcobra if program == "kvcobra" else kvcobrad]
        if program == "kvcobra" and arguments and re.fullmatch(r"[a-z-]+", arguments[0]) and arguments[0] != "help":
            command.append(arguments[0])
            if arguments[0] == "bench" and len(arguments) > 1:
                command.append(arguments[1])
        described = described_by(root, command)
        check(described, f"{page}: '{program} {words}' is not a command")
        for option in re.findall(r"(?:^| )(--[a-z-]+)", words):
            check(option in described + " --help --version", f"{page}: {' '.join(command)} has no option {option}")
    return len(found)


def check_settings(kvcobrad, page, text):
    settings = help_of(kvcobrad)
    for name in re.findall(r"`([a-z]+(?:-[a-z]+)+)(?: = [^`]*)?`", text):
        if re.search(r"-(bytes|ms|extents|threads|queue|fd|dir|pool)$", name):
            check(f"--{name}=" in settings, f"{page}: kvcobrad has no setting {name}")


def check_versions(root, page):
    """Rows "| format | version | read also | `header` | ..." have the version that the header defines."""
    with open(page, encoding="utf-8") as f:
        rows = re.findall(r"(?m)^\| ([^|]+) \| (\d+) \| [^|]* \| `([a-z/_]+\.h)` \|", f.read())
    check(len(rows) >= 7, f"{page}: only {len(rows)} formats with a header")
    for name, version, header in rows:
        with open(os.path.join(root, header), encoding="utf-8") as f:
            defined = re.findall(r"(?m)^#define [A-Z_]*VERSION (\d+)", f.read())
        check(defined[:1] == [version], f"{page}: {name} has version {version}, {header} {defined[:1]}")


def check_tested(root):
    """Each recipe is run by a test, and each command that the README shows: tests/wheel/run.sh runs the two lines of the wheel,
    tests/boot/check_packages.sh those that stand in docs/packages.md too."""
    tests = [os.path.join("tests", "e2e", "cli", "recipes.sh"), os.path.join("tests", "engines", "test_llama_server.py"),
             os.path.join("client", "python", "tests", "test_vllm_page.py")]
    text = "".join(open(os.path.join(root, path), encoding="utf-8").read() for path in tests)
    for name in os.listdir(os.path.join(root, "docs", "recipes")):
        check(re.search(rf'(?:run_recipe |recipes/|RECIPES, "){re.escape(name)}', text), f"no test runs docs/recipes/{name}")
    with open(os.path.join(root, "docs", "packages.md"), encoding="utf-8") as f:
        walk = f.read().partition("### From packages")[2].partition("### Afterwards")[0]
    with open(os.path.join(root, "README.md"), encoding="utf-8") as f:
        commands = re.findall(r"(?m)^ {4}(\S.*)$", f.read())
    check(len(commands) >= 8, f"README.md has only {len(commands)} commands")
    for command in commands:
        check(re.match(r"pip install kvcobra-|kvcobra up ", command) or f"    {command}\n" in walk, f"README.md: no test runs '{command}'")


def main():
    kvcobra, kvcobrad, root = sys.argv[1:]
    docs = os.path.join(root, "docs")
    names = [*os.listdir(docs), *(os.path.join("recipes", name) for name in os.listdir(os.path.join(docs, "recipes")))]
    pages = [os.path.join(docs, name) for name in sorted(names) if name.endswith(".md")]
    n_commands = 0
    index = open(os.path.join(docs, "README.md"), encoding="utf-8").read()
    for page in [*pages, os.path.join(root, "README.md")]:
        with open(page, encoding="utf-8") as f:
            text = f.read()
        check_links(root, page, text)
        n_commands += check_commands((kvcobra, kvcobrad), root, page, text)
        check_settings(kvcobrad, page, text)
        name = os.path.relpath(page, docs)
        check(os.path.basename(name) == "README.md" or f"({name})" in index, f"docs/README.md does not name {name}")
    pictures = os.path.join(docs, "pictures")
    with_pictures = "".join(open(os.path.join(*path), encoding="utf-8").read() for path in ((docs, "concepts.md"), (root, "README.md")))
    for name in sorted(os.listdir(pictures)):
        check_picture(os.path.join(pictures, name))
        check(f"pictures/{name})" in with_pictures, f"no page shows {name}")
    check_versions(root, os.path.join(docs, "compatibility.md"))
    check_tested(root)
    check(n_commands > 40, f"only {n_commands} commands were found")
    for sentence in failures:
        print("FAIL", sentence)
    print(f"{len(pages)} pages, {n_commands} commands, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
