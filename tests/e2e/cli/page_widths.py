"""Checks in Chromium that a page has its pictures and that no part of it is cut, at three widths of the window.

    page_widths.py BROWSER FOLDER PAGE...    FOLDER: for the files of the browser

Each page is laid out in frames of these widths. A script beside them looks for parts that are wider than their frame, and for
text and pictures that go beyond what their container shows. Only a table of many rows may be wider, in a box that scrolls. The
exit sentence names the parts.
"""

import html
import json
import pathlib
import re
import subprocess
import sys

WIDTHS = (400, 768, 1280)

SCRIPT = """
const found = [];
for (const frame of document.querySelectorAll('iframe')) {
    const d = frame.contentDocument, width = frame.clientWidth;
    const wrong = (what, e) => found.push(`${frame.id}: ${what} ${e.tagName} ${e.getAttribute('class') || ''} ` +
                                          (e.textContent || '').trim().slice(0, 40));
    for (const details of d.querySelectorAll('details')) details.open = true;
    if (!d.querySelector('main section')) found.push(`${frame.id}: no page`);
    for (const figure of d.querySelectorAll('figure')) if (!figure.querySelector('svg')) found.push(`${frame.id}: no picture of ${figure.dataset.draw}`);
    if (d.documentElement.scrollWidth > width) wrong('wider than the page:', d.body);
    for (const e of d.querySelectorAll('body *')) {
        const box = e.getBoundingClientRect(), scrolls = e.closest('details .scroll:not(.short)');
        if (e.closest('svg') && e.tagName !== 'svg') continue;
        if (box.width && !scrolls && (box.left < -0.5 || box.right > width + 0.5)) wrong('beyond the page:', e);
        if (!e.closest('details') && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
            wrong('cut:', e);
    }
    for (const svg of d.querySelectorAll('svg:not([aria-hidden])')) {
        const outer = svg.getBoundingClientRect();
        if (!outer.width) { wrong('not drawn:', svg); continue; }
        for (const text of svg.querySelectorAll('text')) {
            const box = text.getBoundingClientRect();
            if (box.left < outer.left - 2 || box.right > outer.right + 2) wrong('text beyond its picture:', text);
            if (box.height < 6) wrong('text too small to read:', text);
        }
    }
}
document.body.textContent = JSON.stringify(found);
"""


def check(browser, folder, page):
    text = pathlib.Path(page).read_text(encoding="utf-8")
    frames = "".join(f'<iframe id="{width}" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(text)}"></iframe>'
                     for width in WIDTHS)
    harness = pathlib.Path(folder) / "widths.html"
    harness.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frames}<script>window.onload=()=>{{{SCRIPT}}}</script>',
                       encoding="utf-8")
    out = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                          f"--user-data-dir={folder}/browser", "--dump-dom", f"file://{harness}"],
                         capture_output=True, text=True, timeout=170).stdout
    body = re.search(r"<body>(\[.*\])</body>", out, re.DOTALL)
    if body is None:
        sys.exit(f"{page}: the browser did not run the check")
    return json.loads(html.unescape(body.group(1)))


if __name__ == "__main__":
    wrong = [f"{page}, {line}" for page in sys.argv[3:] for line in check(sys.argv[1], sys.argv[2], page)]
    if wrong:
        sys.exit("\n".join(wrong[:20]) + f"\n{len(wrong)} parts of pages are cut")
