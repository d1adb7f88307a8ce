#!/usr/bin/env python3
"""Copies the pages of a package to a folder of documents. Links to pages of the sources, which that package does not have there, become
plain words with the path, so that no link is dead.

    installed_pages.py ROOT PACKAGE FOLDER    PACKAGE: kvcobra or kvcobrad
"""
import os
import re
import shutil
import sys

LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def pages_of(root, package):
    if package == "kvcobrad":
        yield from ("SECURITY.md", "systemd/README.md")
        return
    yield from ("README.md", "NEWS.md", "SECURITY.md")
    for folder, _, names in os.walk(os.path.join(root, "docs")):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def installed(text, page, pages):
    """The text of @page with links to @pages only."""
    def replace(match):
        target = os.path.normpath(os.path.join(os.path.dirname(page), match.group(3)))
        if target in pages:
            return match.group(0)
        words = match.group(2)
        return words if words == target or os.path.basename(target) == words else f"{words} (`{target}` of the sources)"

    return LINK.sub(replace, text)


def main():
    root, package, folder = sys.argv[1:]
    pages = list(pages_of(root, package))
    for page in pages:
        path = os.path.join(folder, page)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not page.endswith(".md"):
            shutil.copyfile(os.path.join(root, page), path)
            continue
        with open(os.path.join(root, page), encoding="utf-8") as source, open(path, "w", encoding="utf-8") as target:
            target.write(installed(source.read(), page, pages))


if __name__ == "__main__":
    main()
