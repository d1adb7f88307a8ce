#!/usr/bin/env python3
"""Draws KL against true bits from the results of tools/unseen_kl.sh.

    python3 tools/unseen_kl_picture.py FOLDER PICTURE.svg

FOLDER: --dir of unseen_kl.sh; the mean of each format over the kinds of text in it. Tables whose names begin with "own-" are joined by a line.
"""
import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 696, 44, 372
BITS = (1, 9)
KL = (2e-4, 1.0)

STYLE = """
  text { font: 14px "DejaVu Sans", Verdana, sans-serif; fill: #1b2733 }
  .small { font-size: 12px; fill: #4a5a6a } .strong { font-weight: bold; fill: #2b5f8e }
  .middle { text-anchor: middle } .end { text-anchor: end }
  .grid { stroke: #d5dde5 } .own { fill: none; stroke: #2b5f8e; stroke-width: 3 }
  .dot { fill: #2b5f8e } .other { fill: #c9832b }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4ebf2 } .small { fill: #b3c0cc } .strong { fill: #8fbbe3 } .grid { stroke: #3a4856 }
    .own { stroke: #8fbbe3 } .dot { fill: #8fbbe3 } .other { fill: #ecbd7c }
  }
"""
# where a label stands beside its point, where the right side is taken
SIDES = {"q4_0-rot": "below", "turboquant-4": "left"}


def means(folder):
    """{name: (true bits, KL)} over all kinds, and the number of kinds."""
    rows, files = {}, sorted(pathlib.Path(folder).glob("*.json"))
    for path in files:
        for row in json.loads(path.read_text())["rows"]:
            rows.setdefault(row["name"], []).append((row["bpd_true"], row["kl"]))
    return {name: tuple(sum(column) / len(column) for column in zip(*values))
            for name, values in rows.items() if len(values) == len(files)}, len(files)


def x_of(bits):
    return LEFT + (bits - BITS[0]) / (BITS[1] - BITS[0]) * (RIGHT - LEFT)


def y_of(kl):
    return BOTTOM - math.log(kl / KL[0]) / math.log(KL[1] / KL[0]) * (BOTTOM - TOP)


def label(name, x, y, style):
    is_own = name.startswith("own-")
    side = "left" if is_own else SIDES.get(name, "right")
    text = f"KV-COBRA, {name[4:]} bits" if is_own else name
    if is_own and x < LEFT + 140:  # no room at its left, where the scale is
        return f'<text class="{style} end" x="{x + 12:.1f}" y="{y + 22:.1f}">{html.escape(text)}</text>'
    if side == "below":
        return f'<text class="small middle" x="{x:.1f}" y="{y + 18:.1f}">{html.escape(text)}</text>'
    anchor, shift = (" end", -9) if side == "left" else ("", 9)
    return f'<text class="{style}{anchor}" x="{x + shift:.1f}" y="{y + 4:.1f}">{html.escape(text)}</text>'


def picture(points, n_kinds):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
           'aria-labelledby="t">', "<title id=\"t\">KL to the exact model against true bits per number</title>",
           f"<style>{STYLE}</style>",
           f'<text x="{LEFT}" y="20">KL to the exact model, nats per token: mean of {n_kinds} kinds of text that no table has seen</text>']
    for exponent in range(-3, 1):
        y = y_of(10.0 ** exponent)
        out += [f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>',
                f'<text class="small end" x="{LEFT - 8}" y="{y + 4:.1f}">{10.0 ** exponent:g}</text>']
    for bits in range(2, 10):
        x = x_of(bits)
        out += [f'<path class="grid" d="M{x:.1f} {TOP}V{BOTTOM}"/>',
                f'<text class="small middle" x="{x:.1f}" y="{BOTTOM + 18}">{bits}</text>']
    out.append(f'<text class="middle" x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 10}">true bits per number, scales and exact tokens included</text>')
    own = sorted(value for name, value in points.items() if name.startswith("own-"))
    line = " ".join(f"{x_of(bits):.1f},{y_of(kl):.1f}" for bits, kl in own)
    out.append(f'<polyline class="own" points="{line}"/>')
    for name, (bits, kl) in sorted(points.items()):
        if name.startswith("floor-"):
            continue
        x, y, is_own = x_of(bits), y_of(kl), name.startswith("own-")
        out += [f'<circle class="{"dot" if is_own else "other"}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>',
                label(name, x, y, "strong" if is_own else "small")]
    return "\n".join(out + ["</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    points, n_kinds = means(sys.argv[1])
    if not points:
        sys.exit(f"{sys.argv[1]} has no results: run tools/unseen_kl.sh --dir {sys.argv[1]} first")
    pathlib.Path(sys.argv[2]).write_text(picture(points, n_kinds))


if __name__ == "__main__":
    main()
