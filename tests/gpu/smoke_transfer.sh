#!/bin/sh
# bench_transfer with its smallest sizes, on the stand-in driver: it runs, no metric is missing, and it names the device. Times are not
# checked.
set -eu

json=$("$1" --tokens 64 --layers 1 --kv-heads 1 --samples 3 --threads 2 --ring-mib 1 --json)
printf '%s' "$json" | python3 -c '
import json, sys

x = json.load(sys.stdin)
assert x["stand_in"] is True and x["tokens"] == 64 and [r["bits"] for r in x["rows"]] == [3, 4], x
for row in x["rows"]:
    assert row["vector_bytes"] == 2 * 2 * 64 * 128, row
    assert row["page_bytes"] == row["vector_bytes"] * row["bits"] / 16, row # without the sinks of the first page
    assert set(row["us"]) == {"encode", "encode_copy", "copy_out", "decode", "copy_in"}, row
    assert set(row["ratio"]) == {"encode", "encode_copy", "decode"}, row
    for t in list(row["us"].values()) + list(row["ratio"].values()):
        assert 0 < t["min"] <= t["median"] <= t["p99"], row
    assert row["us"]["encode"]["min"] <= row["us"]["encode_copy"]["min"], row
'
text=$("$1" --tokens 128 --layers 2 --kv-heads 1 --samples 1)
printf '%s' "$text" | grep -q 'No number here is from a GPU'
printf '%s' "$text" | grep -q '^decode from pages into blocks  *4 '
for wrong in "--tokens 65" "--samples 101" "--layers 0" 9; do
    # shellcheck disable=SC2086 # words
    if "$1" $wrong >/dev/null 2>&1; then exit 1; fi
done
if error=$(STANDIN_FAIL=cuMemHostAlloc:1:2 "$1" --tokens 64 --layers 1 --kv-heads 1 2>&1); then exit 1; fi
printf '%s' "$error" | grep -q '^bench_transfer: .*ring_bytes'
