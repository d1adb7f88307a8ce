#!/usr/bin/env python3
"""Prints the metrics of the service on a GPU, and a verdict on every metric that has a target, from the JSON that run.sh stores.
Missing files are reported as not measured. Exits with 1 if a result is wrong, whatever its speed: a failed call, a wrong read, a lost
page.

    report.py PREFIX      PREFIX.json, PREFIX-transfer.json, PREFIX-extents.json, PREFIX-swap.json, PREFIX-restart.json
"""
import json
import sys

MANY = 1 << 20  # token-heads from which the target ratios of attention apply


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except FileNotFoundError:
        print("not measured: there is no %s" % path)
    except (OSError, ValueError) as error:
        print("not measured: %s: %s" % (path, error))
    return None


def table(head, rows):
    """Prints columns as wide as their contents; the first is left-aligned."""
    def text(c):
        return c if isinstance(c, str) else "" if c is None else "%.0f" % c if abs(c) >= 1000 else "%.4g" % c

    cells = [head] + [[text(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
    print()


def of_stand_in(measured):
    name = measured.get("device") or measured["gpu"]["name"]
    return name.startswith("stand-in")


def show_swap(j):
    s = j["swap"]
    print("== tables swapped under load: %d swaps, %d clients, %d sequences, %d tokens published, %d reads compared" %
          (s["swaps"], j["clients"], s["sequences"], s["published_tokens"], s["reads"]))
    if s["failure"]:
        print("first failure: " + s["failure"])
    rows = []
    for call in ("all", *s["us"]["quiet"]["of"]):
        for stretch in ("swapping", "quiet"):
            t = s["us"][stretch] if call == "all" else s["us"][stretch]["of"][call]
            rows.append([call + ", " + stretch, t["calls"], t["median"], t["p99"], t["p999"], t["max"]])
    table(["call, us until its work is done", "calls", "median", "p99", "p99.9", "max"], rows)


def show_restart(j):
    r = j["restart"]
    print("== restart with extents kept: %d times, %d pages of %d bytes held, %d found, %d of %d compared identical" %
          (r["restarts"], r["held"], r["page_bytes"], r["found"], r["identical"], r["sampled"]))
    names = {"exit": "from kill to exit", "serving": "from start to the first answer",
             "gpu": "from start to the first page leased on the GPU"}
    table(["ms", "min", "median", "max"], [[names[k], t["min"], t["median"], t["p99"]] for k, t in r["ms"].items()])


def verdicts_of_attention(j):
    """Per table the size with the worst ratio, against the better of our baseline and of the installed kernels."""
    worst = {}
    for row in j["attend"]:
        if not row["fits"] or not row.get("must"):
            continue
        ratio = min(row["ratio"]["median"], row.get("ratio_to_installed", row["ratio"]["median"]))
        token_heads = row["f16_bytes"] // (4 * 128)
        if token_heads >= MANY and ratio < worst.get(row["table"], (ratio + 1,))[0]:
            worst[row["table"]] = ratio, row
    for name, (ratio, row) in worst.items():
        yield ["attention, %s, %d x %d tokens, speed relative to binary16" % (name, row["batch"], row["tokens"]),
               ">= %.4g" % row["must"], row["aim"] or None, ratio, "" if ratio >= row["must"] else "missed"]


def verdicts_of_transfer(j):
    for row in j["rows"]:
        for name, what, must, aim in (("encode", "encode", 1, None), ("encode_copy", "encode and copy to pages", 1, 1.5),
                                      ("decode", "decode from pages", 1.5, 3)):
            ratio = row["ratio"][name]["median"]
            yield ["%s at %g bits, speed relative to copying 16 bits" % (what, row["bits"]), ">= %.4g" % must, aim, ratio,
                   "" if ratio >= must else "missed"]


def verdicts_of_service(j):
    for a in j["asked"]:
        yield [a["what"], ("< %g" if a["sense"] == "below" else "= %g") % a["asked"], None, a["got"], "" if a["met"] else "missed"]


def main(prefix):
    attend, transfer, extents, swap, restart = (
        load(prefix + x + ".json") for x in ("", "-transfer", "-extents", "-swap", "-restart"))
    found = [x for x in (attend, transfer, extents, swap, restart) if x]
    if swap:
        show_swap(swap)
    if restart:
        show_restart(restart)
    print("== targets")
    rows = list(verdicts_of_attention(attend)) if attend else []
    rows += verdicts_of_transfer(transfer) if transfer else []
    for measured in (swap, restart):
        rows += verdicts_of_service(measured) if measured else []
    for size in extents["rows"] if extents else []:
        rows.append(["extents of %d MiB that a client maps in a second" % (size["bytes"] >> 20), "", None, size["maps_per_second"], ""])
    table(["metric", "must", "aim", "measured", ""], rows)
    if any(map(of_stand_in, found)):
        print("The driver is the stand-in of the tests, which shows that the benches work. No number here is from a GPU.")
    targets = [t for measured in (swap, restart) if measured for t in measured["asked"]]
    return 1 if any(t["sense"] == "exactly" and not t["met"] for t in targets) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
