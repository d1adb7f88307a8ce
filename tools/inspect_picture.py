#!/usr/bin/env python3
"""Draws the tiles and the maps of ranks and bits of a page of 'kvcobra inspect --html' as one picture, with the page's own figures and colours.

    python3 tools/inspect_picture.py PAGE.html PICTURE.svg
"""
import html
import pathlib
import re
import sys
import textwrap
import xml.etree.ElementTree

SVG = "http://www.w3.org/2000/svg"
MARGIN, GAP = 12, 14
TILE_HEIGHT, TILE_LETTERS = 96, 32  # letters of a line of small text in a tile
TITLE_HEIGHT = 26
RULES = (":root", "@media screen", ".tick", ".cell", ".q0")  # of the page's style sheet, one a line
STYLE = """
  text { font-family: system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif }
  .card { fill: var(--card) } .page { fill: var(--bg) }
  .label { fill: var(--muted); font-size: 11.5px } .figure { fill: var(--fg); font-size: 20px; font-weight: 600 }
  .title { fill: var(--fg); font-size: 14px; font-weight: 600 }
"""


def of_class(element, name):
    return [e for e in element.iter() if name in (e.get("class") or "").split()]


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def tiles_of(page):
    """[(what, figure, remark)]"""
    found = []
    for tile in of_class(page, "tiles")[0]:
        what, figure = tile
        remark = figure.find("small")
        found.append((text_of(what), (figure.text or "").strip(), text_of(remark) if remark is not None else ""))
    return found


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


def picture(text):
    page = xml.etree.ElementTree.fromstring(text[text.index("<html"):])
    style = "".join(line + "\n" for line in page.find(".//style").text.splitlines() if line.startswith(RULES))
    parts = [part for e in page.iter("section") if e.get("id") == "bits" for part in of_class(e, "part")]
    if not parts:
        sys.exit("the page is not one of a table: make one by kvcobra inspect TABLE --html PAGE")
    part = parts[0]  # the second one has the product of both
    titles, groups = [text_of(e) for e in part.iter("h4")], [[e for e in maps if "heat" in e.get("class")] for maps in of_class(part, "maps")]
    width = 2 * MARGIN + max(sum(size_of(m)[0] + GAP for m in maps) for maps in groups) - GAP
    out, y = [], MARGIN + TILE_HEIGHT + GAP
    tiles = tiles_of(page)
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
    name = text_of(page.find(".//h1"))
    height = y + MARGIN
    head = [f'<svg xmlns="{SVG}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="t">',
            f'<title id="t">What an allocation table of {html.escape(name)} costs, and how it divides its bits among heads</title>',
            f"<style>\n{style.replace('color-scheme:dark', 'color-scheme: dark')}{STYLE}</style>",
            f'<rect class="page" x="0" y="0" width="{width:.0f}" height="{height:.0f}"/>']
    return "\n".join([*head, *out, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    pathlib.Path(sys.argv[2]).write_text(picture(re.sub(r"<meta[^>]*/>", "", text)), encoding="utf-8")


if __name__ == "__main__":
    main()
