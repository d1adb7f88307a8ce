#!/usr/bin/env python3
"""Draws the tiles and the maps of ranks and bits of a page of 'kvcobra inspect --html' as one picture, with the page's own figures and colours.

    python3 tools/inspect_picture.py PAGE.html PICTURE.svg

Chromium shows the page, and this script takes what it drew.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree

SVG = "http://www.w3.org/2000/svg"
MARGIN, GAP = 12, 14
TILE_HEIGHT, TILE_LETTERS = 96, 32  # letters of a line of small text in a tile
TITLE_HEIGHT = 26
RULES = (":root", "@media screen", ".tick", ".cell", ".q", ".none")  # of the page's style sheet
STYLE = """
  text { font-family: system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif }
  .card { fill: var(--card) } .page { fill: var(--bg) }
  .label { fill: var(--muted); font-size: 11.5px } .figure { fill: var(--fg); font-size: 20px; font-weight: 600 }
  .title { fill: var(--fg); font-size: 14px; font-weight: 600 }
"""


# Runs in a page that shows the other one in a frame: texts and pictures of it, as JSON; pictures as XML.
SCRIPT = """
const page = document.querySelector('iframe').contentDocument, text = (e) => e ? e.textContent.trim().replace(/\\s+/g, ' ') : '';
const part = page.querySelector('#bits .part');
const xml = (svg) => new XMLSerializer().serializeToString(svg);
document.body.textContent = JSON.stringify({
    name: text(page.querySelector('h1')),
    style: page.querySelector('style').textContent,
    tiles: Array.from(page.querySelectorAll('#cost .tiles > div'), (tile) =>
        [text(tile.querySelector('dt')), tile.querySelector('dd').firstChild.textContent.trim(), text(tile.querySelector('small'))]),
    titles: part ? Array.from(part.querySelectorAll('h4'), text) : [],
    maps: part ? Array.from(part.querySelectorAll('.maps'), (maps) => Array.from(maps.querySelectorAll('svg.heat'), xml)) : [],
});
"""
WIDTH = 1080  # of the page, in pixels


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    return sys.exit("there is no Chromium, which draws the page")


def shown(page):
    """What SCRIPT takes from a page."""
    with tempfile.TemporaryDirectory() as folder:
        beside = pathlib.Path(folder) / "beside.html"
        beside.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body><iframe style="width:{WIDTH}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
                          f"<script>window.onload = () => {{{SCRIPT}}}</script>", encoding="utf-8")
        out = subprocess.run([browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                              f"--user-data-dir={folder}/browser", "--dump-dom", f"file://{beside}"],
                             capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<body>(\{.*\})</body>", out, re.DOTALL)
    return json.loads(html.unescape(found.group(1))) if found else sys.exit("the browser did not show the page")


def tile(x, width, parts):
    what, figure, remark = (html.escape(part) for part in parts)
    lines = [f'<rect class="card" x="{x:.0f}" y="{MARGIN}" width="{width:.0f}" height="{TILE_HEIGHT}" rx="8"/>',
             f'<text class="label" x="{x + 12:.0f}" y="{MARGIN + 20}">{what}</text>',
             f'<text class="figure" x="{x + 12:.0f}" y="{MARGIN + 45}">{figure}</text>']
    for n, line in enumerate(textwrap.wrap(remark, TILE_LETTERS)[:2]):
        lines.append(f'<text class="label" x="{x + 12:.0f}" y="{MARGIN + 66 + 16 * n}">{line}</text>')
    return lines


def size_of(element):
    return tuple(float(n) for n in element.get("viewBox").split()[2:])


def rules(css):
    """The rules of colours and cells: each from a line that begins with one of RULES to the line that ends it."""
    found = []
    for rule in re.findall(r"^(?:[^\s@}/*][^\n]*\{[^\n]*\}|\S[^\n]*\{\n.*?^\})$", css, re.DOTALL | re.MULTILINE):
        if rule.startswith(RULES):
            found.append(rule)
    return "\n".join(found)


def picture(text):
    page = shown(text)
    if not page["maps"]:
        sys.exit("the page is not one of a table with pictures: make one by kvcobra inspect TABLE --html PAGE")
    style, titles, tiles = rules(page["style"]), page["titles"], page["tiles"]
    groups = [[xml.etree.ElementTree.fromstring(svg) for svg in maps] for maps in page["maps"]]
    width = 2 * MARGIN + max(sum(size_of(m)[0] + GAP for m in maps) for maps in groups) - GAP
    out, y = [], MARGIN + TILE_HEIGHT + GAP
    tile_width = (width - 2 * MARGIN - GAP * (len(tiles) - 1)) / len(tiles)
    for n, parts in enumerate(tiles):
        out += tile(MARGIN + n * (tile_width + GAP), tile_width, parts)
    for title, maps in zip(titles, groups):
        y += TITLE_HEIGHT
        out.append(f'<text class="title" x="{MARGIN}" y="{y - 8}">{html.escape(title)}: stored directions of each head, and their mean bits</text>')
        x = MARGIN
        for one in maps:
            w, h = size_of(one)
            body = "".join(xml.etree.ElementTree.tostring(e, encoding="unicode") for e in one)
            out.append(f'<svg x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}">{body}</svg>')
            x += w + GAP
        y += max(size_of(m)[1] for m in maps)
    name = page["name"]
    height = y + MARGIN
    head = [f'<svg xmlns="{SVG}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="t">',
            f'<title id="t">What an allocation table of {html.escape(name)} costs, and how it divides its bits among heads</title>',
            f"<style>\n{style}\n{STYLE}</style>",
            f'<rect class="page" x="0" y="0" width="{width:.0f}" height="{height:.0f}"/>']
    return "\n".join([*head, *out, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    pathlib.Path(sys.argv[2]).write_text(picture(text), encoding="utf-8")


if __name__ == "__main__":
    main()
