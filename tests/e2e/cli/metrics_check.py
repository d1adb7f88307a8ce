"""metrics_check.py FILE [EXPRESSION ...]: FILE is a page in the text format of Prometheus, as strict as promtool reads it,
and each EXPRESSION over m (a dict from "name{labels}" to a number) and names (families) is true."""
import math
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def labels_of(text):
    found, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels: {text}"
        assert match[1] not in found, f"label twice: {text}"
        found[match[1]] = match[2]
        at = match.end()
    return found


def parse(text):
    families, samples, current = {}, {}, None
    assert text.endswith("\n"), "no newline at the end"
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in families, f"family twice: {current}"
            assert len(line.split(" ", 3)) == 4, f"no help: {line}"
            families[current] = None
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and families[name] is None, f"TYPE without its HELP: {line}"
            assert kind in ("counter", "gauge", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), f"counters end in _total: {line}"
            families[name] = kind
        else:
            match = SAMPLE.match(line)
            assert match, f"no sample: {line!r}"
            name, labels, value = match[1], labels_of(match[2] or ""), float(match[3])
            base = name
            if families.get(current) == "histogram":
                base = re.sub("_(bucket|sum|count)$", "", name)
            assert base == current, f"outside its family: {line}"
            key = (name, tuple(sorted(labels.items())))
            assert key not in samples, f"sample twice: {line}"
            assert not math.isnan(value) and (families[base] == "gauge" or value >= 0), line
            samples[key] = value
    return families, samples


def check_histograms(families, samples):
    for family in (name for name, kind in families.items() if kind == "histogram"):
        series = {}
        for (name, labels), value in samples.items():
            if name == family + "_bucket":
                rest = tuple(label for label in labels if label[0] != "le")
                series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        assert series, f"{family} is empty"
        for rest, buckets in series.items():
            assert buckets == sorted(buckets), f"{family}{rest}: not in order"
            counts = [count for _, count in buckets]
            assert counts == sorted(counts), f"{family}{rest}: not cumulative"
            assert buckets[-1][0] == math.inf, f"{family}{rest}: no +Inf"
            assert samples[family + "_count", rest] == counts[-1], f"{family}{rest}: count"
            assert (samples[family + "_sum", rest] > 0) == (counts[-1] > 0), f"{family}{rest}: sum"


with open(sys.argv[1], encoding="utf-8", newline="") as page:
    names, found = parse(page.read())
check_histograms(names, found)
m = {}
for (sample, pairs), number in found.items():
    inside = ",".join(f'{k}="{v}"' for k, v in pairs)
    m[sample + ("{" + inside + "}" if inside else "")] = number
for expression in sys.argv[2:]:
    if not eval(expression):
        sys.exit(f"not so: {expression}")
