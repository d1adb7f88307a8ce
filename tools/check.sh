#!/bin/sh
# Builds KV-COBRA twice, first with warnings as errors, then with the address and undefined-behaviour sanitizers, and
# runs every test in both. The tests of the sources' form, of documents and of scripts run once (suites form and once), and the
# code for GPUs is compiled once: no sanitizer knows it. The last line counts: N passed, N failed, N skipped. Exit status 0 if no test failed. Any user can run it, from
# any directory and any number of times; it makes only build-*.
#
#     sh tools/check.sh --retry      runs the tests that failed once more, one at a time, and names those that passed then:
#                                    they depend on time or load, and are to be mended
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

retry=false
case ${1:-} in
"") ;;
--retry) retry=true ;;
*) die "unknown argument: $1. Usage: sh tools/check.sh [--retry]" ;;
esac

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

# run_tests FOLDER ARGUMENT...: failed tests are counted at the end, their output is printed at once
run_tests() {
    folder=$1
    log=$folder/meson-logs/testlog.json
    shift
    rm -f "$log" "$folder/meson-logs/testlog-first.json"
    # one more than there are cores: many tests wait, for a daemon or a deadline
    run meson test -C "$folder" --no-rebuild --print-errorlogs --num-processes $(($(nproc) + 1)) "$@" || true
    [ -f "$log" ] || die "the tests in $folder did not run"
    "$retry" || return 0
    failed=$(python3 tools/test_summary.py --failed "$log")
    [ -n "$failed" ] || return 0
    say "running again what failed: $(echo "$failed" | tr '\n' ' ')"
    mv "$log" "$folder/meson-logs/testlog-first.json"
    # shellcheck disable=SC2086 # names of tests have no spaces
    run meson test -C "$folder" --no-rebuild --print-errorlogs --num-processes 1 "$@" $failed || true
    [ -f "$log" ] || die "the tests in $folder did not run again"
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
build build-sanitize -Db_sanitize=address,undefined -Dtests=enabled -Dcuda=disabled
say "2 of 2: testing"
run_tests build-sanitize --timeout-multiplier 8 --no-suite form --no-suite once

python3 tools/test_summary.py build-check/meson-logs build-sanitize/meson-logs
