#!/bin/sh
# Kills the daemon and its clients N times (10000) under load, compares all pages and checks all accounts:
# tests/e2e/test_kills.c. The last lines have the counts. BUILD is a build folder with tests (build).
#
#     sh tools/kill_test.sh [N [BUILD]]
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
n=${1:-10000}
build=${2:-$root/build}

case $n in
'' | *[!0-9]* | 0*)
    echo "kill_test: $n is not a number of kills" >&2
    exit 2
    ;;
esac
if [ ! -f "$build/build.ninja" ]; then
    echo "kill_test: $build is not a build folder: run meson setup -Dtests=enabled $build" >&2
    exit 2
fi
ninja -C "$build" --quiet tests/e2e/test_kills tests/e2e/kvcobrad_checked
KVC_KILLS=$n meson test -C "$build" --no-rebuild --timeout-multiplier 0 --verbose kills
