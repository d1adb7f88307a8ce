#!/bin/sh
# Runs everything that needs a GPU, on a machine that has one: builds with nvcc, runs the tests of gpu/cuda, of sequences on a GPU,
# of kvcobra-mover and of clients that share a pool against the real driver, then the benches, and writes a dated report with the
# measurements as JSON beside it (README.md describes how to read it). Uses no network. Exits with 77 and a sentence if nvcc or a GPU
# is missing, and with 1 if a test failed, a bench did not run, or a bench read wrong data.
#
# It takes at most nine minutes: a step that does not fit is reported and counts as failed. Seconds, estimated for a machine of 16 cores:
# build 120 (10 the second time), tests 60, attention 120, extents 15, swap 35, restart 25, attention by kernels of 8.0 30, kernels
# installed beside torch 60. Each step also has its own limit.
#
#     [KVC_BENCH_TABLE=FILE] tests/gpu/run.sh [BUILD_FOLDER [REPORT_FOLDER]]
#
# KVC_BENCH_TABLE: a table file, as 'kvcobra solve' makes it, that the bench measures too.
set -eu

began=$(date +%s)
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build-gpu}
reports=${2:-$build}
tests="unit/gpu/cuda/test_cuda_abi unit/gpu/cuda/test_cuda_append unit/gpu/cuda/test_cuda_attend unit/gpu/cuda/test_cuda_kernels
    unit/gpu/cuda/test_cuda_f16 unit/gpu/cuda/test_cuda_launch unit/gpu/cuda/test_cuda_memory
    unit/client/test_client_gpu_check unit/client/test_client_gpu_seq unit/client/test_client_gpu_misuse unit/client/test_client_gpu_graph
    unit/client/test_client_gpu_batch unit/mover/test_mover_serve e2e/test_client_gpu e2e/test_client_gpu_errors"

# Prints the seconds that a step may take: at most $1, and at most the seconds that are left.
left() {
    rest=$((began + 535 - $(date +%s)))
    if [ "$rest" -lt "$1" ]; then echo "$rest"; else echo "$1"; fi
}

skip() {
    echo "tests/gpu/run.sh: skipped: $*" >&2
    exit 77
}

toolkit=${CUDA_PATH:-/usr/local/cuda}
[ -x "$toolkit/bin/nvcc" ] || skip "there is no $toolkit/bin/nvcc (set CUDA_PATH to the folder of the toolkit)"
command -v nvidia-smi >/dev/null || skip "there is no nvidia-smi, so no NVIDIA driver"
nvidia-smi -L | grep -q GPU || skip "nvidia-smi lists no GPU"

[ -f "$build/build.ninja" ] || meson setup "$build" "$root" --buildtype=release -Dtoolkit_path="$toolkit"
grep -q '^build tests/e2e/test_client_gpu_restart:' "$build/build.ninja" && tests="$tests e2e/test_client_gpu_restart" # with libsystemd
# shellcheck disable=SC2046,SC2086 # words
timeout "$(left 400)" ninja -C "$build" $(for t in $tests; do echo "tests/$t"; done) daemon/kvcobrad mover/kvcobra-mover tools/kvcobra \
    tests/gpu/bench_gpu_attend tests/gpu/bench_gpu_extents

report=$reports/gpu-$(date +%Y-%m-%d).txt
json=${report%.txt}.json
mkdir -p "$reports"
failed=0
{
    date -u '+%Y-%m-%d %H:%M UTC'
    nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv
    "$toolkit/bin/nvcc" --version | tail -n 2
    git -C "$root" log -1 --format='revision %h' 2>/dev/null || true
    echo
} >"$report"
for t in $tests; do
    echo "== $t" >>"$report"
    status=0
    limit=$(left 90)
    [ "$limit" -ge 5 ] || status=124
    [ "$status" -ne 0 ] || TEST_GPU=1 KVC_SOURCE_ROOT=$root KVC_KVCOBRAD=$build/daemon/kvcobrad \
        KVC_MOVER=$build/mover/kvcobra-mover timeout "$limit" "$build/tests/$t" >>"$report" 2>&1 || status=$?
    case $status in
    0) ;;
    77) echo "skipped" >>"$report" ;;
    124)
        echo "failed: out of time" >>"$report"
        failed=$((failed + 1))
        ;;
    *)
        echo "failed with status $status" >>"$report"
        failed=$((failed + 1))
        ;;
    esac
done

# Runs a measurement: its name, its limit in seconds, a file for its output ("": the report), the command. Rows of attention have
# their own limits, so a slow kernel does not delay the others.
measure() {
    echo "== $1" >>"$report"
    limit=$(left "$2")
    to=${3:-$report}
    shift 3
    if [ "$limit" -lt 5 ]; then
        echo "failed: no time left" >>"$report"
    elif timeout "$limit" "$@" >>"$to" 2>>"$report"; then
        return 0
    else
        echo "failed" >>"$report"
    fi
    failed=$((failed + 1))
}

prefix=${json%.json}
rm -f "$json" "$prefix"-*.json # files of an earlier run of the day
service="$build/tools/kvcobra bench service --gpu first --json"
measure "attention, appending, reading, checksums" 210 "" "$build/tests/gpu/bench_gpu_attend" --json="$json" \
    ${KVC_BENCH_TABLE:+--table "$KVC_BENCH_TABLE"}
measure "import and map" 40 "" "$build/tests/gpu/bench_gpu_extents" --json="$prefix-extents.json"
# shellcheck disable=SC2086 # words
measure "tables swapped under load (metrics below)" 90 "$prefix-swap.json" $service swap
if grep -q '^build tests/e2e/test_client_gpu_restart:' "$build/build.ninja"; then
    # shellcheck disable=SC2086 # words
    measure "restart with extents kept (metrics below)" 60 "$prefix-restart.json" $service restart
else
    echo "== restart with extents kept: skipped: this build is without libsystemd" >>"$report"
fi
measure "attention by kernels of 8.0" 60 "" "$build/tests/gpu/bench_gpu_attend" --compute 80 --batch 1 --tokens 131072 \
    --seconds 1 --json="$prefix-80.json"
measure "best binary16 kernels installed beside torch" 90 "" python3 "$root/tests/gpu/torch_baseline.py" "$json"
echo >>"$report"
python3 "$root/tests/gpu/report.py" "$prefix" >>"$report" || failed=$((failed + 1))
cat "$report"
echo
echo "report: $report"
[ "$failed" -eq 0 ]
