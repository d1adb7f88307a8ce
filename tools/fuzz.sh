#!/bin/sh
# Searches for inputs that break parsers and the daemon: builds every target of tests/fuzz/ with libFuzzer, ASan and UBSan
# in build-fuzz, and runs all of them side by side. Any user can run it, from any directory and any number of times.
#
#   sh tools/fuzz.sh [--runs N] [--corpus FOLDER] [--update] [--only TARGET]... [MINUTES]
#
#   MINUTES           how long the targets run (10)
#   --runs N          a target ends after N executions, so that slower targets get its processor time
#   --corpus FOLDER   where inputs are collected from run to run ($XDG_CACHE_HOME/kvcobra/fuzz)
#   --update          afterwards, adds inputs to tests/fuzz/corpus/ that reach code which no input there reaches
#   --only TARGET     only this target, for example table; may be repeated
#
# Prints for each target its executions, executions per second, covered edges, inputs and findings, and a total. Ctrl-C
# ends the search and prints the same. Findings are in FOLDER/findings/; run build-fuzz/tests/fuzz/fuzz_TARGET FILE to see
# one, and copy it to tests/fuzz/corpus/TARGET/ with the fix. Exit status 0 if nothing was found.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build=$root/build-fuzz
restarts=5 # of a target that keeps failing

say() {
    echo "fuzz: $*"
}

die() {
    echo "fuzz: $*" >&2
    exit 1
}

usage() {
    echo "usage: fuzz.sh [--runs N] [--corpus FOLDER] [--update] [--only TARGET]... [MINUTES]" >&2
    exit 2
}

# is_number TEXT: whether it is a whole number above 0
is_number() {
    case $1 in
    '' | *[!0-9]* | 0*) return 1 ;;
    esac
}

minutes=10
runs=0
corpus=
update=no
only=
while [ $# -gt 0 ]; do
    case $1 in
    --runs)
        is_number "${2:-}" || usage
        runs=$2
        shift
        ;;
    --corpus)
        [ -n "${2:-}" ] || usage
        corpus=$2
        shift
        ;;
    --update) update=yes ;;
    --only)
        [ -n "${2:-}" ] || usage
        only="$only $2"
        shift
        ;;
    *)
        { [ $# -eq 1 ] && is_number "$1"; } || usage
        minutes=$1
        ;;
    esac
    shift
done
if [ -z "$corpus" ]; then
    [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || die "neither XDG_CACHE_HOME nor HOME is set: name a folder with --corpus"
    corpus=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra/fuzz
fi
mkdir -p "$corpus"
corpus=$(cd "$corpus" && pwd)

# ---- build ----

sh tools/setup.sh build test fuzz
if [ ! -f "$build/build.ninja" ]; then
    mkdir -p "$build"
    CC=clang CXX=clang++ meson setup "$build" --buildtype=debugoptimized -Dtests=enabled -Dcuda=disabled -Dfuzz=true \
        -Db_sanitize=address,undefined -Db_lundef=false >"$build/setup.log" 2>&1 || {
        cat "$build/setup.log" >&2
        die "meson could not set up build-fuzz"
    }
fi
ninja -C "$build" --quiet fuzz-targets || die "the build in build-fuzz failed"

targets=
for program in "$build"/tests/fuzz/fuzz_*; do
    { [ -f "$program" ] && [ -x "$program" ]; } || continue
    name=${program##*/fuzz_}
    case " $only " in
    "  " | *" $name "*) targets="$targets $name" ;;
    esac
done
for name in $only; do
    [ -x "$build/tests/fuzz/fuzz_$name" ] || die "there is no target '$name': tests/fuzz/meson.build lists them"
done

# ---- the search ----

export ASAN_OPTIONS="abort_on_error=0:malloc_context_size=6:quarantine_size_mb=16:allocator_release_to_os_interval_ms=-1"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
export OPENBLAS_NUM_THREADS=1
export KVC_FUZZ_FOLDER="$corpus/work"
logs=$(mktemp -d)
end=$(($(date +%s) + minutes * 60))

# Without -entropic=0 libFuzzer counts rare branches, which took four fifths of the time of fuzz_daemon.
# search TARGET WORKER: runs one target until the time is over; a finding ends libFuzzer, which is then started again
search() {
    tries=0
    while [ "$tries" -lt "$restarts" ]; do
        left=$((end - $(date +%s)))
        [ "$left" -gt 0 ] || return 0
        status=0
        "$build/tests/fuzz/fuzz_$1" -max_total_time="$left" -runs="$runs_each" -timeout=20 -rss_limit_mb=2048 -entropic=0 \
            -print_final_stats=1 -artifact_prefix="$corpus/findings/$1-" "$corpus/$1" "tests/fuzz/corpus/$1" \
            >"$logs/$1.$2.$tries" 2>&1 &
        pid=$!
        trap 'kill -TERM "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; exit 0' TERM
        wait "$pid" || status=$?
        trap - TERM
        # 72: libFuzzer was interrupted
        { [ "$status" -ne 0 ] && [ "$status" -ne 72 ]; } || return 0
        echo "$status" >>"$logs/$1.failed"
        tries=$((tries + 1))
    done
}

n_targets=$(echo "$targets" | wc -w)
n_workers=$((($(nproc) + n_targets - 1) / n_targets))
runs_each=-1
[ "$runs" -eq 0 ] || runs_each=$(((runs + n_workers - 1) / n_workers))
mkdir -p "$corpus/findings" "$KVC_FUZZ_FOLDER"
say "running $n_targets targets for $minutes minutes, each in $n_workers process(es), at the lowest priority"
say "inputs are in $corpus"
began=$(date +%s)
searches=
for name in $targets; do
    mkdir -p "$corpus/$name"
    worker=0
    while [ "$worker" -lt "$n_workers" ]; do
        search "$name" "$worker" &
        searches="$searches $!"
        worker=$((worker + 1))
    done
done
# shellcheck disable=SC2086 # a list of process ids
renice -n 19 -p $searches >/dev/null 2>&1 || true
stopped=no
# shellcheck disable=SC2086
trap 'stopped=yes; kill -TERM $searches 2>/dev/null || true' INT TERM HUP
for search in $searches; do
    while kill -0 "$search" 2>/dev/null; do
        wait "$search" 2>/dev/null || true
    done
done
trap - INT TERM HUP
seconds=$(($(date +%s) - began))
[ "$seconds" -gt 0 ] || seconds=1

# ---- what was done ----

n_findings=0
total=0
printf '%-16s %14s %10s %8s %8s %9s\n' target executions per-second edges inputs findings
for name in $targets; do
    done_here=$(cat "$logs/$name".[0-9]* | awk '/^stat::number_of_executed_units:/ { n += $2 } END { printf "%.0f", n }')
    busy=$(cat "$logs/$name".[0-9]* | awk '/^stat::average_exec_per_sec:/ { n += $2 } END { printf "%.0f", n }')
    edges=$(cat "$logs/$name".[0-9]* | awk '{ for (i = 1; i < NF; i++) if ($i == "cov:" && $(i + 1) + 0 > n) n = $(i + 1) } END { print n + 0 }')
    inputs=$(find "$corpus/$name" -type f | wc -l)
    found=0
    [ ! -f "$logs/$name.failed" ] || found=$(wc -l <"$logs/$name.failed")
    total=$((total + done_here))
    n_findings=$((n_findings + found))
    printf '%-16s %14s %10s %8s %8s %9s\n' "$name" "$done_here" "$busy" "$edges" "$inputs" "$found"
    if [ "$found" -gt 0 ]; then
        grep -h -E 'ERROR: |runtime error: |SUMMARY: ' "$logs/$name".[0-9]* | sort | uniq -c | sort -rn | head -n 5
    fi
done
printf '%-16s %14s %10s %8s %8s %9s\n' total "$total" $((total / seconds)) "" "" "$n_findings"
say "$seconds s of $minutes minutes; findings are in $corpus/findings"

# ---- the corpus ----

if [ "$stopped" = no ]; then
    say "dropping inputs that reach nothing more than others"
    for name in $targets; do
        fresh=$corpus/$name.new
        rm -rf "$fresh"
        mkdir "$fresh"
        if timeout 600 nice -n 19 "$build/tests/fuzz/fuzz_$name" -merge=1 -timeout=20 "$fresh" "$corpus/$name" >"$logs/$name.merge" 2>&1; then
            rm -rf "${corpus:?}/$name"
            mv "$fresh" "$corpus/$name"
        else
            rm -rf "$fresh"
            say "the inputs of $name are left as they are: see $corpus/$name.merge"
            cp "$logs/$name.merge" "$corpus/$name.merge"
        fi
        if [ "$update" = yes ]; then
            timeout 600 nice -n 19 "$build/tests/fuzz/fuzz_$name" -merge=1 -timeout=20 -use_counters=0 "tests/fuzz/corpus/$name" \
                "$corpus/$name" >"$logs/$name.update" 2>&1 || say "tests/fuzz/corpus/$name could not be updated"
        fi
    done
fi
rm -rf "$logs" "$KVC_FUZZ_FOLDER"
[ "$n_findings" -eq 0 ]
