#!/bin/sh
# bench_extents at its smallest, on the stand-in driver: it runs, no figure is missing, sums are sums, and it says what it ran on.
# No time is asked.
set -eu

export STANDIN_BYTES=1073741824 # which the stand-in takes away from what one process may create, for good
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
        least = sum(us[p]["min"] for p in parts)
        assert 0 < least <= us[whole]["min"] + 1e-6 and us[whole]["p99"] <= sum(us[p]["p99"] for p in parts) + 1e-6, (whole, row)
'
text=$("$1" --mib 2 --samples 1)
printf '%s' "$text" | grep -q 'No figure here is one of a GPU'
printf '%s' "$text" | grep -q 'extents of 2 MiB that a client maps in a second: [1-9]'
! "$1" --mib 0 2>/dev/null
! STANDIN_BYTES=1048576 "$1" --mib 2 2>/dev/null # more memory than there is
error=$(STANDIN_DEVICES=0 "$1" --mib 2 2>&1) && exit 1
printf '%s' "$error" | grep -q '^bench_extents: .*CUDA'
