#!/bin/sh
# Measures how long a neighbour and an operator wait while another user attacks the daemon: tests/e2e/test_attacks.c, each
# attack for MS milliseconds (5000). BUILD is a build folder with tests (build). Needs root, for processes of other users.
#
#     sh tools/attack_test.sh [MS [BUILD]]
#
# Waits are in milliseconds: median, p99 and longest. A neighbour's p99 is to be at most 10 ms or three times that of an
# exchange with a process that echoes packets, its longest wait and an operator's at most 100 ms; rows that miss this are
# marked, and change nothing else: a busy machine makes all waits longer. "grown" is the memory in KiB that the daemon
# took beside pages and arenas. Exit status 0 if the neighbour got everything and the memory stayed within its limit.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
ms=${1:-5000}
build=${2:-$root/build}

case $ms in
'' | *[!0-9]* | 0*)
    echo "attack_test: $ms is not a number of milliseconds" >&2
    exit 2
    ;;
esac
if [ ! -f "$build/build.ninja" ]; then
    echo "attack_test: $build is not a build folder: run meson setup --buildtype=release -Dtests=enabled $build" >&2
    exit 2
fi
ninja -C "$build" --quiet tests/e2e/test_attacks daemon/kvcobrad >/dev/null
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, load $(cut -d ' ' -f 1 /proc/loadavg)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
KVC_ATTACK_MS=$ms meson test -C "$build" --no-rebuild --timeout-multiplier 0 --verbose attacks >"$log" 2>&1 || status=$?
awk '
    BEGIN {
        printf "%-12s %24s %24s %24s %7s\n", "", "neighbour", "echo", "operator", "grown"
    }
    /^row / {
        limit = 3 * $7 > 10 ? 3 * $7 : 10
        late = $4 > limit || $5 > 100 || $11 > 100
        n += late
        printf "%-12s %8.2f %7.2f %7.2f %8.2f %7.2f %7.2f %8.2f %7.2f %7.2f %7d%s\n", $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
               late ? " *" : ""
        if (/no cgroup/)
            shared = 1
    }
    /FAIL|skip / { print }
    END {
        if (n > 0)
            print "* misses a target"
        if (shared)
            print "the attackers have no cgroup of their own: this machine lets none be made with a share of the processors"
    }' "$log"
exit "$status"
