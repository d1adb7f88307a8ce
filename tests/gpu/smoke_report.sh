#!/bin/sh
# report.py on small measurements of the stand-in: every section is printed, verdicts follow from the metrics, wrong results make it
# fail, missing files are named. Times are not checked.
# smoke_report.sh BENCH_GPU_ATTEND BENCH_GPU_EXTENTS KVCOBRA-LAB BENCH_GPU_TRANSFER
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
here=$(dirname "$0")
"$1" --batch 1 --tokens 64 --kv-heads 1 --samples 1 --cold-mib 0 --json >"$dir/x.json"
"$2" --mib 2 --samples 1 --json >"$dir/x-extents.json"
"$3" bench service swap --quick --clients 1 --gpu first --json >"$dir/x-swap.json"
"$4" --tokens 64 --layers 1 --kv-heads 1 --samples 1 --ring-mib 1 --json >"$dir/x-transfer.json"
python3 "$here/report.py" "$dir/x" >"$dir/out"
cat "$dir/out"
grep -q "not measured: there is no $dir/x-restart.json" "$dir/out"
grep -q '^== tables swapped under load: [1-9][0-9]* swaps, 1 clients' "$dir/out"
grep -q '^all, swapping ' "$dir/out"
grep -q '^extents of 2 MiB that a client maps in a second ' "$dir/out"
grep -q '^decode from pages at 4 bits, speed relative to copying 16 bits  *>= 1.5  *3 .* missed$' "$dir/out"
grep -q '^wrong reads  *= 0 *0$' "$dir/out"
grep -q 'No number here is from a GPU' "$dir/out"
if grep -q '^attention' "$dir/out"; then exit 1; fi # no target applies to 64 token-heads

# Invented metrics of a GPU: the worst size counts, against the better baseline; a wrong read fails the run
python3 - "$dir" <<'END'
import json, sys
d = sys.argv[1]
row = lambda table, tokens, ratio, **more: dict(table=table, batch=1, tokens=tokens, fits=True, must=3, aim=5.5,
    f16_bytes=tokens * 8 * 512, ratio={"median": ratio}, **more)
rows = [row("a", 131072, 4.0), row("a", 262144, 3.5), row("a", 64, 0.1), row("b", 131072, 4.0, ratio_to_installed=2.5),
        dict(table="c", batch=9, tokens=9, fits=False)]
json.dump({"device": "NVIDIA", "attend": rows}, open(d + "/y.json", "w"))
s = json.load(open(d + "/x-swap.json"))
s["gpu"]["name"] = "NVIDIA"
json.dump(s, open(d + "/y-swap.json", "w"))
next(a for a in s["asked"] if "wrong" in a["what"]).update(got=1, met=False)
json.dump(s, open(d + "/z-swap.json", "w"))
END
python3 "$here/report.py" "$dir/y" >"$dir/out"
grep -q '^attention, a, 1 x 262144 tokens, .* >= 3  5.5  *3.5$' "$dir/out"
grep -q '^attention, b, 1 x 131072 tokens, .* >= 3  5.5  *2.5  missed$' "$dir/out"
if grep -q 'stand-in' "$dir/out" || python3 "$here/report.py" "$dir/z" >"$dir/out"; then exit 1; fi
grep -q '^wrong reads  *= 0 *1  missed$' "$dir/out"
