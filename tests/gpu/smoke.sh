#!/bin/sh
# The GPU bench with its smallest sizes, on the stand-in driver: it runs, every row is printed, and no metric is missing. Times are not
# checked.
set -eu

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
json=$("$1" --batch 1 --tokens 64 --kv-heads 1 --samples 1 --cold-mib 0 --json 2>"$errors") || {
    cat "$errors" >&2
    exit 1
}
printf '%s' "$json" | python3 -c '
import json, sys

x = json.load(sys.stdin)
assert [len(x[k]) for k in ("attend", "codec")] == [8, 8], x
for row in x["attend"]:
    assert row["fits"] and row["packed_us"]["median"] > 0 and row["f16_us"]["median"] > 0 and row["ratio"]["p99"] > 0, row
    assert row["f16_bytes"] == 2 * 2 * 64 * 128 and row["packed_bytes"] < row["f16_bytes"], row
    assert abs(row["byte_limit"] - row["f16_bytes"] / row["packed_bytes"]) < 1e-6 and row["kernel"].startswith("kvc_"), row
assert [row["must"] for row in x["attend"]][::2] == [3, 2, 1.2, 4], x
for row in x["codec"]:
    assert all(row[x]["min"] > 0 for x in ("append_us", "step_us", "batch_step_us", "read_us", "crc_us")), row
'
# Two numbers of splits, pages and heads, as text
"$1" --batch 2 --tokens 128 --kv-heads 1 --samples 1 --cold-mib 0 | grep -q 'K 32, V 32, predicted  *2  *128 '
# General kernels
"$1" --compute 0 --batch 1 --tokens 64 --kv-heads 1 --samples 1 --cold-mib 0 >"$errors"
grep -q "K 128, V 128  *1  *64 .* kvc_attend_128_rows_" "$errors"
! "$1" --tokens 65 2>/dev/null
