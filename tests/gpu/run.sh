#!/bin/sh
# Runs everything that needs a GPU, from a kit that tests/gpu/kit.sh made, and writes a report as text and its measurements as JSON
# (README.md describes how to read it). It needs the driver of an NVIDIA GPU, tar, and for some parts python3 with torch; no network, no
# compiler, no root. What ran before the limit is in the report.
#
#     run.sh [--seconds S] [--reports FOLDER] [PART ...]
#
# --seconds   time for everything (default 495); a step that does not fit is reported and counts as failed
# --reports   where gpu-DATE.txt and JSON go (default: the folder of the kit)
# PART        of smoke, doctor, tests, transfer, attention, service, torch, cpu, in this order (default: all but cpu)
#
# KVC_BENCH_TABLE: a table file, as 'kvcobra solve' makes it, that the bench of attention measures too.
# KVC_DRIVER: a folder with a libcuda.so.1 that is used instead of the machine's (tests: the stand-in, whose numbers are not of a GPU).
#
# Exit status 0; 1: a test failed, a bench did not run or read wrong data; 77: there is no driver or no GPU.
set -eu

began=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
seconds=495
reports=$here
parts=

die() {
    echo "run.sh: $*" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --seconds)
        [ $# -ge 2 ] && [ "$2" -gt 0 ] 2>/dev/null || die "--seconds wants a number of seconds"
        seconds=$2
        shift
        ;;
    --reports)
        [ $# -ge 2 ] || die "--reports wants a folder"
        reports=$2
        shift
        ;;
    smoke | doctor | tests | transfer | attention | service | torch | cpu) parts="$parts $1" ;;
    *) die "unknown argument: $1. Usage: run.sh [--seconds S] [--reports FOLDER] [smoke|doctor|tests|transfer|attention|service|torch|cpu ...]" ;;
    esac
    shift
done
parts=${parts:-smoke doctor tests transfer attention service torch}

skip() {
    echo "run.sh: skipped: $*" >&2
    exit 77
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The programs lie beside this script, or in an archive there
kit=$here
if [ ! -d "$here/bin" ]; then
    kit=$scratch/kit
    mkdir "$kit"
    tar -C "$kit" -xJf "$here/kit.tar.xz" 2>/dev/null ||
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$here/kit.tar.xz" "$kit" ||
        die "cannot unpack $here/kit.tar.xz: it needs room in ${TMPDIR:-/tmp} (TMPDIR names another folder), and tar with xz or python3"
fi
[ -z "${KVC_DRIVER:-}" ] || export LD_LIBRARY_PATH="$KVC_DRIVER${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export KVC_KVCOBRAD="$kit/bin/kvcobrad" KVC_MOVER="$kit/libexec/kvcobra-mover" KVC_SOURCE_ROOT="$kit"
[ -n "${KVC_DRIVER:-}" ] || export TEST_GPU=1
test_seconds=60
[ -z "${KVC_DRIVER:-}" ] || test_seconds=600 # kernels run on the CPU, which may be busy

mkdir -p "$reports"
report=$reports/gpu-$(date +%Y-%m-%d).txt
prefix=${report%.txt}
rm -f "$report" "$prefix".json "$prefix"-*.json # of an earlier run of the day
failed=0

say() {
    echo "$*" | tee -a "$report"
}

# Seconds that a step may take: at most $1, and at most what is left.
left() {
    rest=$((began + seconds - $(date +%s)))
    if [ "$rest" -lt "$1" ]; then echo "$rest"; else echo "$1"; fi
}

# step NAME LIMIT FILE COMMAND...: runs a command within its limit; its output goes to the report and, unless FILE is "", what it prints
# on standard output goes to FILE. Exit status 77 of the command: skipped.
step() {
    name=$1
    limit=$(left "$2")
    to=${3:-$scratch/out}
    shift 3
    start=$(date +%s)
    status=0
    : >"$scratch/out"
    if [ "$limit" -lt 3 ]; then
        say "== $name: failed: no time left"
        failed=$((failed + 1))
        return 1
    fi
    timeout -k 5 "$limit" "$@" >"$to" 2>"$scratch/err" || status=$?
    took=$(($(date +%s) - start))
    case $status in
    0) say "== $name: $took s" ;;
    77) say "== $name: skipped" ;;
    124 | 137) say "== $name: failed: it did not end within $limit s" ;;
    *) say "== $name: failed with status $status after $took s" ;;
    esac
    cat "$scratch/out" "$scratch/err" >>"$report"
    case $status in
    0) return 0 ;;
    77) return 0 ;;
    esac
    tail -n 25 "$scratch/out"
    tail -n 10 "$scratch/err"
    failed=$((failed + 1))
    return 1
}

# Prints why no daemon can serve here; nothing if one can.
why_no_daemon() {
    timeout 3 "$KVC_KVCOBRAD" --no-operator-socket --socket="$scratch/probe.sock" --pool-bytes=4M --extent-bytes=1M --span-bytes=256K >"$scratch/probe" 2>&1 &&
        status=0 || status=$?
    [ "$status" -eq 124 ] || tail -n 1 "$scratch/probe"
}

needs_daemon() {
    case $1 in
    *test_client_gpu | *test_client_gpu_errors | *test_client_gpu_host_pages | *test_client_gpu_restart) return 0 ;;
    esac
    return 1
}

{
    date -u '+%Y-%m-%d %H:%M UTC'
    cat "$kit/VERSION" 2>/dev/null || true
    uname -srm
    grep -m 1 'model name' /proc/cpuinfo || true
    nproc
} >"$report"
if [ -z "${KVC_DRIVER:-}" ]; then
    command -v nvidia-smi >/dev/null || skip "there is no nvidia-smi, so no NVIDIA driver"
    nvidia-smi -L | grep -q GPU || skip "nvidia-smi lists no GPU"
    nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,clocks.max.sm,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current \
        --format=csv >>"$report" || true
fi
cat "$report"
no_daemon=$(why_no_daemon)
[ -z "$no_daemon" ] || say "parts that need a daemon are skipped here: $no_daemon"

for part in $parts; do
    case $part in
    smoke)
        step "smoke: memory of the device" 20 "" "$kit/tests/test_cuda_memory" || true
        ;;
    doctor)
        # its status tells what it found, not whether it works
        step "kvcobra doctor" 20 "" sh -c "\"$kit/bin/kvcobra\" doctor || [ \$? -eq 1 ]" || true
        ;;
    tests)
        while read -r t; do
            if needs_daemon "$t" && [ -n "$no_daemon" ]; then
                say "== $t: skipped: $no_daemon"
            else
                step "$t" "$test_seconds" "" "$kit/tests/$t" || true
            fi
        done <"$kit/tests/list"
        ;;
    transfer)
        [ ! -x "$kit/bin/bench_gpu_transfer" ] ||
            step "encoding and decoding for pools in host memory" 90 "" "$kit/bin/bench_gpu_transfer" --json="$prefix-transfer.json" || true
        step "import and map" 40 "" "$kit/bin/bench_gpu_extents" --json="$prefix-extents.json" || true
        ;;
    cpu)
        while read -r t; do
            step "$t" "$test_seconds" "" "$kit/tests/$t" || true
        done <"$kit/tests/list-cpu"
        step "attention on this processor" 60 "$prefix-cpu.json" "$kit/bin/kvcobra-lab" bench attend --json || true
        ;;
    attention)
        step "attention, appending, reading, checksums" 150 "" "$kit/bin/bench_gpu_attend" --json="$prefix.json" \
            ${KVC_BENCH_TABLE:+--table "$KVC_BENCH_TABLE"} || true
        step "attention by general kernels" 60 "" "$kit/bin/bench_gpu_attend" --compute 0 --batch 1 --tokens 131072 --seconds 1 \
            --json="$prefix-general.json" || true
        ;;
    service)
        if [ -n "$no_daemon" ]; then
            say "== service: skipped: $no_daemon"
            continue
        fi
        step "tables swapped under load" 60 "$prefix-swap.json" "$kit/bin/kvcobra-lab" bench service --gpu first --json swap || true
        step "restart with extents kept" 45 "$prefix-restart.json" "$kit/bin/kvcobra-lab" bench service --gpu first --json restart || true
        ;;
    torch)
        if ! command -v python3 >/dev/null || ! python3 -c 'import torch' 2>/dev/null; then
            say "== torch: skipped: python3 has no torch"
            continue
        fi
        [ ! -f "$prefix.json" ] ||
            step "best binary16 kernels installed beside torch" 90 "" python3 "$here/torch_baseline.py" "$prefix.json" || true
        if [ -n "$no_daemon" ]; then
            say "== a shared prompt: skipped: $no_daemon"
            continue
        fi
        version=$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
        for wheel in "$kit"/wheels/cffi-*-"$version"-*.whl "$kit"/wheels/pycparser-*.whl; do
            [ ! -f "$wheel" ] || python3 -m zipfile -e "$wheel" "$scratch/site"
        done
        step "a worker of vLLM" "$test_seconds" "" env PYTHONPATH="$kit/python:$scratch/site" KVCOBRA_LIBRARY="$kit/lib/libkvcobra.so.0" \
            KVC_KVCOBRA="$kit/bin/kvcobra" KVC_WRITE_TABLE="$kit/bin/write_table" python3 -B "$kit/python-tests/test_vllm_gpu.py" || true
        step "a shared prompt" 150 "" env PYTHONPATH="$kit/python:$scratch/site" KVCOBRA_LIBRARY="$kit/lib/libkvcobra.so.0" \
            python3 "$here/torch_prompt.py" "$kit" "$prefix-prompt.json" || true
        ;;
    esac
done
if command -v python3 >/dev/null; then
    step "verdicts" 20 "" python3 "$here/report.py" "$prefix" || true
    cat "$scratch/out"
fi
say "report: $report; $(($(date +%s) - began)) s; failed steps: $failed"
[ "$failed" -eq 0 ]
