"""metrics_check.py PAGE MAN [EXPRESSION ...]: checks that PAGE is in the text format of Prometheus, as strictly as promtool
does, that the man page MAN has each family with the same type and HELP sentence, and that each EXPRESSION is true. In an
expression m is a dict from "name{labels}" to a number, total(name) the sum of a family, names a dict from families to types,
manual a dict from the families of the man page to their type and HELP."""
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
        assert match[1] not in found, f"the same label twice: {text}"
        found[match[1]] = match[2]
        at = match.end()
    return found


def parse(text):
    families, helps, samples, current = {}, {}, {}, None
    assert text.endswith("\n"), "no newline at the end"
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in families, f"family twice: {current}"
            assert len(line.split(" ", 3)) == 4, f"no help: {line}"
            families[current] = None
            helps[current] = line.split(" ", 3)[3]
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
    return families, helps, samples


def items_of_man(path):
    """Family to (type, HELP, unit) of each .It of kvcobrad-metrics(7)."""
    found = {}
    with open(path, encoding="utf-8") as man:
        for match in re.finditer(r"^\.It Ic (\S+)\n(.*)\n(Counter|Gauge|Histogram)(?:, in ([a-z]+))?", man.read(), re.MULTILINE):
            assert match[1] not in found, f"{match[1]} twice in {path}"
            found[match[1]] = match[3].lower(), match[2], match[4]
    return found


def check_manual(families, helps, items):
    for name, kind in families.items():
        assert name in items, f"{name} is not in the man page"
        assert items[name][:2] == (kind, helps[name]), f"{name}: {items[name]}, {kind}, {helps[name]}"
        assert helps[name].endswith("."), f"HELP of {name} is no sentence"
        assert not name.endswith("_bytes") or items[name][2] == "bytes", f"unit of {name}"


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
    names, sentences, found = parse(page.read())
manual = items_of_man(sys.argv[2])
check_histograms(names, found)
check_manual(names, sentences, manual)
m = {}
for (sample, pairs), number in found.items():
    inside = ",".join(f'{k}="{v}"' for k, v in pairs)
    m[sample + ("{" + inside + "}" if inside else "")] = number


def total(name):
    """The sum of all samples of a family that have @name, which must exist."""
    values = [value for (sample, _), value in found.items() if sample == name]
    assert values, f"no sample of {name}"
    return sum(values)


for expression in sys.argv[3:]:
    if not eval(expression):
        sys.exit(f"not true: {expression}")
