#!/bin/sh
# Everything that needs a GPU, on a machine that has one: builds with nvcc, runs the tests of gpu/cuda, of sequences on a GPU,
# of kvcobra-mover and of clients that share a pool against the real driver and writes a dated report, with the tables of
# bench_attend.c in it and the same as JSON beside it. Under nine minutes, no network; exits with 77, and a sentence, where nvcc or a GPU is missing.
#
#     [KVC_BENCH_TABLE=FILE] tests/gpu/run.sh [BUILD_FOLDER [REPORT_FOLDER]]
#
# KVC_BENCH_TABLE: a table file that the bench measures too, as 'kvcobra solve' makes it.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build-gpu}
reports=${2:-$build}
tests="unit/gpu/cuda/test_cuda_abi unit/gpu/cuda/test_cuda_append unit/gpu/cuda/test_cuda_attend unit/gpu/cuda/test_cuda_kernels
    unit/gpu/cuda/test_cuda_kernels_f16 unit/gpu/cuda/test_cuda_launch unit/gpu/cuda/test_cuda_memory
    unit/client/test_client_gpu_seq unit/client/test_client_gpu_misuse unit/client/test_client_gpu_graph
    unit/mover/test_kvcobra_mover e2e/client_gpu e2e/client_gpu_errors"

skip() {
    echo "tests/gpu/run.sh: skipped: $*" >&2
    exit 77
}

toolkit=${CUDA_PATH:-/usr/local/cuda}
[ -x "$toolkit/bin/nvcc" ] || skip "there is no $toolkit/bin/nvcc (CUDA_PATH says where the toolkit is)"
command -v nvidia-smi >/dev/null || skip "there is no nvidia-smi, so no NVIDIA driver"
nvidia-smi -L | grep -q GPU || skip "nvidia-smi lists no GPU"

[ -f "$build/build.ninja" ] || meson setup "$build" "$root" --buildtype=release -Dtoolkit_path="$toolkit"
grep -q '^build tests/e2e/client_gpu_restart:' "$build/build.ninja" && tests="$tests e2e/client_gpu_restart" # with libsystemd
# shellcheck disable=SC2046,SC2086 # words
ninja -C "$build" $(for t in $tests; do echo "tests/$t"; done) daemon/kvcobrad mover/kvcobra-mover tests/gpu/bench_gpu_attend

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
    TEST_GPU=1 KVC_SOURCE_ROOT=$root KVC_KVCOBRAD=$build/daemon/kvcobrad KVC_MOVER=$build/mover/kvcobra-mover timeout 90 "$build/tests/$t" >>"$report" 2>&1 || status=$?
    case $status in
    0) ;;
    77) echo "skipped" >>"$report" ;;
    *)
        echo "failed with status $status" >>"$report"
        failed=$((failed + 1))
        ;;
    esac
done

# A measurement: its name, seconds that it may take, the command. Rows have limits of their own, so a slow kernel costs itself.
measure() {
    echo "== $1" >>"$report"
    if ! (shift && timeout "$@") >>"$report" 2>&1; then
        echo "failed" >>"$report"
        failed=$((failed + 1))
    fi
}

measure bench_gpu_attend 210 "$build/tests/gpu/bench_gpu_attend" --json="$json" ${KVC_BENCH_TABLE:+--table "$KVC_BENCH_TABLE"}
measure "bench_gpu_attend, kernels of 8.0" 60 "$build/tests/gpu/bench_gpu_attend" --compute 80 --batch 1 --tokens 131072 \
    --seconds 1 --json="${json%.json}-80.json"
measure "best binary16 kernels installed beside torch" 90 python3 "$root/tests/gpu/torch_baseline.py" "$json"
cat "$report"
echo
echo "report: $report"
[ "$failed" -eq 0 ]
