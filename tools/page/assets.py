"""Packs the files of pages into page_assets.c; page_assets.h declares what it defines.

    assets.py OUTPUT STYLE COMMON D3 COPYRIGHT KIND TEMPLATE SCRIPT [KIND TEMPLATE SCRIPT]...

D3, COPYRIGHT: Debian's d3.min.js and the licence of its package, which precedes it as a comment; "none": pages have tables
only. KIND: a constant of enum page_kind.
"""
import base64
import hashlib
import pathlib
import re
import sys

LINE = 24  # bytes of a line of the array


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def library(path, copyright_path):
    """D3 with its licence, or nothing."""
    if path == "none":
        return ""
    licence = read(copyright_path)
    if "*/" in licence:
        sys.exit(f"{copyright_path} cannot stand in a comment")
    return f"/*\n{licence}*/\n{read(path)}"


def check_script(path, text):
    """A script must not end the element that holds it."""
    found = re.search(r"</script|<!--", text, re.IGNORECASE)
    if found:
        sys.exit(f"{path}: a script that stands in a page must not contain {found.group()}")


def definition(name, text):
    """The array of a text, and the text of the asset that refers to it."""
    data = text.encode()
    lines = ["    " + ", ".join(str(b) for b in data[i:i + LINE]) + "," for i in range(0, len(data), LINE)]
    array = f"static const unsigned char {name}_bytes[] = {{\n" + "\n".join(lines or ["    0,"]) + "\n};\n"
    return array, f"{{(const char *) {name}_bytes, {len(data)}}}"


def sha256(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def main(output, style, common, d3, copyright_path, *pages):
    out = ['#include "tools/page/page_assets.h"\n']
    scripts = [text for text in (library(d3, copyright_path), read(common)) if text]
    for path, text in ((d3, scripts[0]), (common, scripts[-1])):
        check_script(path, text)
    for name, text in (("page_style", read(style)), ("page_d3", library(d3, copyright_path)), ("page_common", read(common))):
        array, value = definition(name, text)
        out.append(f"{array}const struct page_asset {name} = {value};\n")
    templates, own, hashes = [], [], []
    for kind, template, script in zip(pages[::3], pages[1::3], pages[2::3]):
        text = read(script)
        check_script(script, text)
        for prefix, content, rows in (("template", read(template), templates), ("script", text, own)):
            array, value = definition(f"{prefix}_{kind.lower()}", content)
            out.append(array)
            rows.append(f"    [{kind}] = {value},")
        hashes.append(f'    [{kind}] = "{" ".join(sha256(s) for s in [*scripts, text])}",')
    for declaration, rows in (("const struct page_asset page_templates[PAGE_KINDS]", templates),
                              ("const struct page_asset page_scripts[PAGE_KINDS]", own),
                              ("const char *const page_script_hashes[PAGE_KINDS]", hashes)):
        out.append(f"{declaration} = {{\n" + "\n".join(rows) + "\n};\n")
    pathlib.Path(output).write_text("\n".join(out), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
