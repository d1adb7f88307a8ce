"""Checks a page of `kvcobra inspect --html` or `bench capacity --html`, or a picture of one; the exit sentence names the error.

    inspect_html_check.py numbers PAGE JSON          the page loads nothing and has the numbers of --json
    inspect_html_check.py shown BROWSER PAGE JSON    in Chromium it shows them: sections, tables, tiles and pictures
    inspect_html_check.py picture PNG WIDTH HEIGHT
"""

import html.parser
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zlib
from collections import Counter

SECTIONS = ["cost", "bytes", "bits", "distortion", "curves", "spectra", "shapes", "levels", "paper", "provenance"]
PARTS = {"curves": "curves", "distortion": "distortion", "spectra": "spectra", "gaussianity": "shapes"}  # of the JSON: section
LOADING = {"link", "img", "image", "iframe", "object", "embed", "audio", "video", "source", "base", "form", "use"}
VOID = {"meta", "br", "hr"}


class Tree(html.parser.HTMLParser):
    """The elements of a page."""

    def __init__(self):
        super().__init__()
        self.builder = ElementTree.TreeBuilder()

    def handle_starttag(self, tag, attrs):
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.builder.end(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            self.builder.end(tag)

    def handle_data(self, data):
        self.builder.data(data)


def tree_of(text):
    parser = Tree()
    parser.feed(text[text.index("<html"):].strip())
    parser.close()
    return parser.builder.close()


def text_of(element):
    return "".join(element.itertext()).strip()


def check_loads_nothing(root):
    for element in root.iter():
        if element.tag in LOADING:
            sys.exit(f"element {element.tag}")
        for name, value in element.attrib.items():
            if name == "src" or name.startswith("on"):
                sys.exit(f"attribute {name}")
            if name.endswith("href") and not value.startswith("#"):
                sys.exit(f"a reference to {value}")
        style = (element.text or "") if element.tag == "style" else element.get("style", "")
        if "url(" in style or "@import" in style:
            sys.exit("a style that loads something")
    ids = {e.get("id") for e in root.iter() if e.get("id")}
    for element in root.iter("a"):
        if element.get("href")[1:] not in ids:
            sys.exit(f"a link to {element.get('href')}, which is not there")


def near(a, b):
    """Whether a value of the page is that of the document, to the five digits of its real numbers."""
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(near(a[key], b[key]) for key in b)
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(map(near, a, b))
    if isinstance(b, float):
        return math.isclose(a, b, rel_tol=6e-5)
    return a == b


def check_numbers(page, numbers):
    root = tree_of(pathlib.Path(page).read_text(encoding="utf-8"))
    check_loads_nothing(root)
    data = [e for e in root.iter("script") if e.get("id") == "numbers"]
    scripts = [e for e in root.iter("script") if e.get("id") != "numbers"]
    if len(data) != 1 or data[0].get("type") != "application/json" or any(e.attrib for e in scripts):
        sys.exit("other scripts than those of the page")
    shown, document = json.loads(data[0].text), json.load(open(numbers, encoding="utf-8"))
    shown.pop("page", None)
    for row in document.get("spectra", []):  # the page has lines of them, per layer
        del row["eigenvalues"], row["weighted"]
    for key in sorted(shown.keys() | document.keys()):
        if not near(shown.get(key), document.get(key)):
            sys.exit(f"{key} differs from the document")


def same(cell, value):
    """Compares a cell with a number: pages show four digits."""
    if value is None:
        return cell == "–"
    if isinstance(value, list):
        return True if len(value) > 16 else all(map(same, cell.split(), value)) and len(cell.split()) == len(value)
    if isinstance(value, str):
        return cell == value
    if isinstance(value, int) or value == 0:
        return float(cell) == value
    return abs(float(cell) - value) <= 0.56 * 10 ** (math.floor(math.log10(abs(value))) - 3)  # rounded twice


def in_form(form, value):
    return amount(value) if form == "bytes" else f"{math.floor(value):,}"


def check_tables(root, document):
    compared = 0
    for table in root.iter("table"):
        path = table.get("data-of")
        if not path:
            continue
        rows = document
        for key in path.split("."):
            rows = rows[key]
        keys = [(th.get("data-key"), th.get("data-form")) for th in table.find("thead").iter("th")]
        shown = list(table.find("tbody"))
        if len(shown) != len(rows):
            sys.exit(f"{path}: {len(shown)} rows instead of {len(rows)}")
        for tr, row in zip(shown, rows):
            for td, (key, form) in zip(tr, keys):
                if not (text_of(td) == in_form(form, row[key]) if form else same(text_of(td), row.get(key))):
                    sys.exit(f"{path}.{key}: {text_of(td)} instead of {row.get(key)}")
                compared += 1
    return compared


def amount(size):
    """Bytes as the page shows them, with three digits."""
    unit = min(int(math.log2(size)) // 10, 4) if size else 0
    return f"{size / 1024 ** unit:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def check_cost(section, document):
    """The first section has the numbers that a reader looks for."""
    tiles = {text_of(d.find("dt")): text_of(d.find("dd")) for d in section.iter("div") if d.find("dt") is not None}
    wanted = {}
    if "bytes" in document:
        context = next(b for b in document["bytes"] if b["tokens"] == 32768)
        wanted["A context of 32768 tokens"] = amount(context["total"])
        wanted["Tokens per GiB"] = f"{context['tokens_per_gib']:,}"
    if "eval" in document:
        wanted["KL to the exact model, per token"] = f"{float(format(document['eval']['kl'], '.3g')):g} nats"
        shown = re.match(r"([\d.]+) → ([\d.]+)[+-]", tiles["Perplexity"])
        if not shown or not all(math.isclose(float(text), document["eval"][key], rel_tol=6e-4) for text, key in zip(shown.groups(), ("ppl_exact", "ppl"))):
            sys.exit(f"perplexity: {tiles['Perplexity']}")
    elif "kl" in (document.get("provenance") or {}).get("expected", {}):
        wanted["KL to the exact model, expected"] = f"about {float(format(document['provenance']['expected']['kl'], '.2g')):g} nats"
    if "distortion" in document:
        share = sum(h["solved"] for h in document["distortion"]) / sum(h["equal"] for h in document["distortion"])
        wanted["Distortion, of that of equal budgets"] = f"{100 * share:.3g} %"
    for title, value in wanted.items():
        if not tiles.get(title, "").startswith(value):
            sys.exit(f"{title}: {tiles.get(title)} instead of {value}")
    if ("eval" in document) == ("kvcobra inspect --eval" in text_of(section)) and "bytes" in document:
        sys.exit("the page does not say how to measure its quality, or says it though it is measured")


def dom_of(browser, page):
    """The page after its scripts have run."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
                              f"--user-data-dir={folder}", "--window-size=1000,900", "--dump-dom", f"file://{pathlib.Path(page).resolve()}"],
                             capture_output=True, text=True, timeout=170, check=True)
    wrong = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    if wrong:
        sys.exit(wrong[0])
    return tree_of(run.stdout)


def check_shown(browser, page, numbers):
    root, document = dom_of(browser, page), json.load(open(numbers, encoding="utf-8"))
    sections = {s.get("id"): s for s in root.iter("section")}
    if list(sections) != SECTIONS:
        sys.exit(f"sections {list(sections)}")
    check_cost(sections["cost"], document)
    has_d3 = "d3js.org" in pathlib.Path(page).read_text(encoding="utf-8")
    curve = (document.get("provenance") or {}).get("expected", {}).get("at_bpd")
    if (sections["cost"].find(".//svg") is not None) != bool(has_d3 and curve):
        sys.exit("cost: what other budgets would give is drawn, and the table does not say it, or the other way round")
    for part, section in PARTS.items():
        drawn = sections[section].find(".//svg") is not None
        if drawn != (has_d3 and part not in document["unavailable"]):
            sys.exit(f"{section}: {'drawn' if drawn else 'not drawn'}, though the JSON says otherwise")
        if part in document["unavailable"] and document["unavailable"][part] not in text_of(sections[section]):
            sys.exit(f"{section}: the reason is not given")
    for svg in root.iter("svg"):
        if svg.get("aria-hidden") != "true" and not (svg.get("role") == "img" and svg.get("aria-label")):
            sys.exit("a picture without words")
    for element in (e for svg in root.iter("svg") for e in svg.iter()):
        if any(re.search(r"NaN|Infinity|undefined", value) for value in [*element.attrib.values(), element.text or ""]):
            sys.exit(f"a part of a picture without a number: {element.tag} {element.attrib}")
    texts = document.get("provenance", {}).get("statistics", {}).get("texts")
    if texts and not any(table.get("data-of") == "provenance.statistics.texts" for table in root.iter("table")):
        sys.exit("the texts of the statistics are not shown")
    if check_tables(root, document) < 6:
        sys.exit("almost no numbers on the page")


def rows_of(data, width, height, channels):
    """Yields each row of a PNG's inflated data without its filter."""
    stride, before = width * channels, bytearray(width * channels)
    for y in range(height):
        kind, row = data[y * (stride + 1)], bytearray(data[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            left = row[i - channels] if i >= channels else 0
            corner = before[i - channels] if i >= channels else 0
            if kind == 1:
                row[i] = (row[i] + left) & 255
            elif kind == 2:
                row[i] = (row[i] + before[i]) & 255
            elif kind == 3:
                row[i] = (row[i] + (left + before[i]) // 2) & 255
            elif kind == 4:
                guess = left + before[i] - corner
                distances = [abs(guess - left), abs(guess - before[i]), abs(guess - corner)]
                row[i] = (row[i] + (left, before[i], corner)[distances.index(min(distances))]) & 255
        yield row
        before = row


def check_picture(path, width, height):
    png, data, at = open(path, "rb").read(), b"", 8
    w, h, depth, kind = struct.unpack(">IIBB", png[16:26])
    if (w, h, depth) != (width, height, 8) or kind not in (2, 6):
        sys.exit(f"a picture of {w} x {h}, depth {depth}, kind {kind}")
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    channels, colours, marked = (3 if kind == 2 else 4), Counter(), 0
    for row in rows_of(zlib.decompress(data), w, h, channels):
        pixels = [bytes(row[i:i + 3]) for i in range(0, len(row), channels * 4)]  # every fourth pixel is enough
        colours.update(pixels)
        marked += len(set(pixels)) > 1
    share = colours.most_common(1)[0][1] / sum(colours.values())
    if len(colours) < 30 or share > 0.985 or marked < h / 4:
        sys.exit(f"nearly blank: {len(colours)} colours, {share:.3f} of it one, {marked} of {h} rows with anything")


if sys.argv[1] == "numbers":
    check_numbers(*sys.argv[2:])
elif sys.argv[1] == "shown":
    check_shown(*sys.argv[2:])
else:
    check_picture(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
