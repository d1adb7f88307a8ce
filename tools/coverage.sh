#!/bin/sh
# Measures which lines the tests run: builds KV-COBRA with counters in build-coverage, runs the tests, and prints the share
# of lines by folder and the files below 90 %. Any user can run it, from any directory and any number of times; counts of
# earlier runs are dropped. build-coverage/coverage.json has the numbers of every file.
#
#   sh tools/coverage.sh              all suites
#   sh tools/coverage.sh unit fuzz    these suites of tests only
#
# Processes that are killed write no counts, so tests that kill a daemon count only what others run too. Exit status 0
# also if tests fail: check.sh judges them. daemon_faults does: it lets the allocations of the counters fail too.
# tests/COVERAGE.md has a result. The run takes the time of the whole suite, three times; do not change the sources
# meanwhile.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build="build-coverage"

die() {
    echo "coverage: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

run sh tools/setup.sh build model test coverage
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
    # -O1: with -O0 the tests of numerics take ten times as long, with -O2 lines merge
    run meson setup "$build" -Db_coverage=true -Dbuildtype=debug -Doptimization=1 -Dtests=enabled -Dcuda=disabled \
        >"$build/setup.log" 2>&1 || {
        cat "$build/setup.log" >&2
        die "meson could not set up $build"
    }
fi
run ninja -C "$build" --quiet || die "the build in $build failed"
find "$build" -name '*.gcda' -delete

suites="--no-suite form"
if [ $# -gt 0 ]; then
    suites=
    for suite in "$@"; do
        suites="$suites --suite $suite"
    done
fi
# shellcheck disable=SC2086 # a list of options
run meson test -C "$build" --no-rebuild --timeout-multiplier 16 $suites >"$build/tests.log" 2>&1 ||
    echo "coverage: some tests failed, see $build/tests.log; their lines count all the same"

run gcovr --root . --object-directory "$build" --exclude-unreachable-branches --exclude-throw-branches \
    --gcov-ignore-parse-errors --exclude 'tests/' --exclude 'build' --exclude 'examples/' --json-summary "$build/coverage.json" \
    >"$build/gcovr.log" 2>&1 || {
    tail -n 20 "$build/gcovr.log" >&2
    die "gcovr could not read the counts"
}
python3 - "$build/coverage.json" <<'PYTHON'
import collections
import json
import sys

# rows of their own; the kernels of gpu/cuda run in the tests as C on the CPU
ROOMS = {"gpu/cpu": "gpu/cpu (CPU kernels)", "gpu/cuda": "gpu/cuda (with a stand-in driver)"}
files = json.load(open(sys.argv[1]))["files"]
sums = collections.defaultdict(lambda: [0, 0])
for f in files:
    room = "/".join(f["filename"].split("/")[:2])
    folder = ROOMS.get(room, f["filename"].split("/")[0])
    sums[folder][0] += f["line_covered"]
    sums[folder][1] += f["line_total"]
print(f"{'folder':33} {'lines':>7} {'run':>7} {'share':>7}")
for folder, (covered, total) in sorted(sums.items()):
    print(f"{folder:33} {total:7} {covered:7} {100 * covered / max(total, 1):6.1f} %")
print("\nbelow 90 %:")
for f in sorted(files, key=lambda f: f["line_covered"] - f["line_total"]):
    if f["line_total"] > 0 and f["line_covered"] < 0.9 * f["line_total"]:
        share = 100 * f["line_covered"] / f["line_total"]
        print(f"  {f['filename']:50} {share:5.1f} %  {f['line_total'] - f['line_covered']:4} lines not run")
PYTHON
