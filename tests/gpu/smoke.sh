#!/bin/sh
# The GPU bench at its smallest, on the stand-in driver: it runs, every row is there, and no figure is missing. No time is asked.
set -eu

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
json=$("$1" --batch 1 --tokens 64 --kv-heads 1 --samples 1 --cold-mib 0 --extent-mib 2 --json 2>"$errors") || {
    cat "$errors" >&2
    exit 1
}
printf '%s' "$json" | python3 -c '
import json, sys

x = json.load(sys.stdin)
assert [len(x[k]) for k in ("attend", "codec", "extents")] == [8, 8, 1], x
for row in x["attend"]:
    assert row["fits"] and row["packed_us"]["median"] > 0 and row["f16_us"]["median"] > 0 and row["ratio"]["p99"] > 0, row
    assert row["f16_bytes"] == 2 * 2 * 64 * 128 and row["packed_bytes"] < row["f16_bytes"], row
for row in x["codec"]:
    assert all(row[x]["min"] > 0 for x in ("append_us", "step_us", "read_us", "crc_us")), row
assert x["extents"][0]["bytes"] == 2 << 20 and x["extents"][0]["import_us"]["min"] > 0
'
# Two numbers of splits, pages and heads, as a table for people
"$1" --batch 2 --tokens 128 --kv-heads 1 --samples 1 --cold-mib 0 --extent-mib 2 | grep -q 'K 32, V 32, predicted  *2  *128 '
! "$1" --tokens 65 2>/dev/null
