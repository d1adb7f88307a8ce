#!/bin/sh
# bench_extents with its smallest sizes, on the stand-in driver: it runs, no metric is missing, totals agree with their parts, and it
# names the device. Times are not checked.
set -eu

export STANDIN_BYTES=1073741824 # the stand-in counts all memory that a process ever created
json=$("$1" --mib 2 --mib 4 --samples 5 --json)
printf '%s' "$json" | python3 -c '
import json, sys

x = json.load(sys.stdin)
assert x["gpu"]["stand_in"] is True and [r["bytes"] for r in x["rows"]] == [2 << 20, 4 << 20], x
for row in x["rows"]:
    us = row["us"]
    assert set(us) == {"make", "create", "export", "clear", "use", "import", "map", "access", "unmap"}, row
    assert all(0 <= t["min"] <= t["median"] <= t["p99"] for t in us.values()) and row["maps_per_second"] > 0, row
    for whole, parts in ("make", ("create", "export", "clear")), ("use", ("import", "map", "access", "unmap")):
        least, most = (sum(us[p][x] for p in parts) for x in ("min", "p99")) # printed with nine digits
        assert 0 < least <= us[whole]["min"] * (1 + 1e-7) and us[whole]["p99"] <= most * (1 + 1e-7), (whole, row)
'
text=$("$1" --mib 2 --samples 1)
printf '%s' "$text" | grep -q 'No number here is from a GPU'
printf '%s' "$text" | grep -q 'extents of 2 MiB that a client maps in a second: [1-9]'
for wrong in "--mib 0" "--samples 201" "--mib 1 --mib 1 --mib 1 --mib 1 --mib 1" 9; do
    # shellcheck disable=SC2086 # words
    if "$1" $wrong >/dev/null 2>&1; then exit 1; fi
done
fails() {
    if error=$(env "$1" "$2" --mib 2 2>&1); then exit 1; fi
    printf '%s' "$error" | grep -q "^bench_extents: .*$3"
}
fails STANDIN_BYTES=1048576 "$1" OUT_OF_MEMORY
fails STANDIN_DEVICES=0 "$1" CUDA
