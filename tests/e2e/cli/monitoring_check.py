"""monitoring_check.py KVCOBRAD-METRICS.7 FOLDER: every metric that the alert rules and the dashboard of FOLDER use is described
in the man page, with the labels that they use; counters are used with rates. promtool checks the rules where it exists."""
import json
import os
import re
import shutil
import subprocess
import sys

OF_PROMETHEUS = {"instance", "job", "le"}  # labels that Prometheus adds
RATES = ("rate(", "increase(", "changes(", "resets(")


def families(path):
    """Name to (type, labels) of each metric of the man page."""
    found = {}
    with open(path, encoding="utf-8") as man:
        for item in man.read().split("\n.It Ic ")[1:]:
            kind = re.search(r"^(Counter|Gauge|Histogram)", item, re.MULTILINE)
            labels = re.search(r"labels?:? ([a-z_, ]+)", item)
            found[item.split("\n", 1)[0].strip()] = kind[1].lower(), set(re.findall(r"[a-z_]+", labels[1])) if labels else set()
    return found


def check_expression(known, expression, where):
    names = re.findall(r"\bkvcobra_[a-z_]+", expression)
    assert names, f"{where}: no metric in {expression}"
    labels = set()
    for name in names:
        family = re.sub("_bucket$", "", name)
        assert family in known, f"{where}: there is no metric {family}"
        kind = known[family][0]
        assert kind != "histogram" or name.endswith("_bucket"), f"{where}: {name} is a histogram"
        labels |= known[family][1]
        if kind != "gauge":
            for match in re.finditer(re.escape(name), expression):
                assert expression[:match.start()].endswith(RATES), f"{where}: {name} is a counter without a rate"
    for used in re.findall(r"by \(([a-z_, ]+)\)", expression) + re.findall(r"([a-z_]+)=~?\"", expression):
        for label in used.split(", "):
            assert label in labels | OF_PROMETHEUS, f"{where}: {' '.join(names)} has no label {label}"
    return labels


def check_templates(labels, text, where):
    for label in re.findall(r"\{\{ *(?:\$labels\.)?([a-z_]+) *\}\}", text):
        assert label in labels | OF_PROMETHEUS, f"{where}: no label {label}"


def check_rules(known, path):
    with open(path, encoding="utf-8") as file:
        rules = file.read().split("      - alert: ")[1:]
    assert len(rules) >= 8, len(rules)
    for rule in rules:
        name = rule.split("\n", 1)[0]
        expression = " ".join(re.search(r"        expr: (?:>-\n)?(.*?)\n        [a-z]", rule, re.DOTALL)[1].split())
        labels = set() if expression.startswith("up{") else check_expression(known, expression, name)
        check_templates(labels, rule, name)
        for key in ("severity: ", "summary: ", "description: "):
            assert key in rule, f"{name}: no {key}"
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", path], check=True)


def check_dashboard(known, path):
    with open(path, encoding="utf-8") as file:
        dashboard = json.load(file)
    places = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and (place["x"], place["y"]) not in places, panel["title"]
        places.add((place["x"], place["y"]))
        assert panel["description"].endswith("."), panel["title"]
        for target in panel["targets"]:
            check_templates(check_expression(known, target["expr"], panel["title"]), target["legendFormat"], panel["title"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 10
    for variable in dashboard["templating"]["list"][1:]:
        check_expression(known, variable["query"].replace("label_values(", ""), variable["name"])


def main(man, folder):
    known = families(man)
    assert len(known) > 40, sorted(known)
    check_rules(known, os.path.join(folder, "kvcobra-alerts.yml"))
    check_dashboard(known, os.path.join(folder, "kvcobra-dashboard.json"))


main(*sys.argv[1:])
