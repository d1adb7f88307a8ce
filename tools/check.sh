#!/bin/sh
# Builds KV-COBRA twice, first with warnings as errors, then with the address and undefined-behaviour sanitizers, and
# runs every test in both. The tests of the sources' form run once. The last line counts: N passed, N failed, N skipped.
# Exit status 0 if no test failed. Any user can run it, from any directory and any number of times; it makes only build-*.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() {
    echo "check: $*"
}

die() {
    echo "check: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

# build FOLDER SETUP-ARGUMENT...
build() {
    folder=$1
    shift
    mkdir -p "$folder"
    if [ -f "$folder/build.ninja" ]; then
        set -- --reconfigure "$@"
    fi
    run meson setup "$@" "$folder" >"$folder/setup.log" 2>&1 || {
        cat "$folder/setup.log" >&2
        die "meson could not set up $folder"
    }
    run ninja -C "$folder" --quiet || die "the build in $folder failed"
}

# Failed tests are counted at the end; their output is printed at once.
run_tests() {
    folder=$1
    shift
    rm -f "$folder/meson-logs/testlog.json"
    run meson test -C "$folder" --no-rebuild --print-errorlogs "$@" || true
    [ -f "$folder/meson-logs/testlog.json" ] || die "the tests in $folder did not run"
}

run sh tools/setup.sh build model test
if ! run sh tools/fetch_model.sh >/dev/null; then
    say "the model could not be fetched, so the tests that need it are skipped"
fi

say "1 of 2: building with warnings as errors in build-check"
build build-check -Dwerror=true -Dtests=enabled
say "1 of 2: testing"
# the time limits are for tests that hang; a machine may be busy with other work
run_tests build-check --timeout-multiplier 8

say "2 of 2: building with ASan and UBSan in build-sanitize"
build build-sanitize -Db_sanitize=address,undefined -Dtests=enabled
say "2 of 2: testing"
run_tests build-sanitize --timeout-multiplier 8 --no-suite form

python3 tools/test_summary.py build-check/meson-logs/testlog.json build-sanitize/meson-logs/testlog.json
