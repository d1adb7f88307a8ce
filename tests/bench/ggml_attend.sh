#!/bin/sh
# `kvcobra-lab bench attend` against the CPU flash attention of ggml with f16, q8_0 and q4_0 caches: the same shapes, the same
# number of threads, one after the other in rounds. Run it by hand; this project contains no part of ggml.
#
#     tests/bench/ggml_attend.sh [BUILD_FOLDER] [ROUNDS]
#
# GGML_SOURCE names a folder of ggml's or llama.cpp's sources; without it the PyPI source package of llama-cpp-python is
# downloaded. Exits with 77 and a sentence if the download fails or a tool is missing.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
rounds=${2:-5}
threads=2
lab=$build/lab/kvcobra-lab
work=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra/ggml

skip() {
    echo "ggml_attend.sh: skipped: $*" >&2
    exit 77
}

for tool in cmake cc c++ python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ -x "$lab" ] || skip "$lab does not exist; name the build folder"

# ---- ggml ------------------------------------------------------------------------------------------------------------
mkdir -p "$work"
if [ -z "${GGML_SOURCE:-}" ]; then
    if ! ls "$work"/llama_cpp_python-*/vendor >/dev/null 2>&1; then
        echo "downloading llama-cpp-python's source package from PyPI (77 MB)" >&2
        (cd "$work" && python3 -m pip download --quiet --no-binary llama-cpp-python --no-deps llama-cpp-python) ||
            skip "the source package cannot be downloaded"
        tar -C "$work" -xzf "$work"/llama_cpp_python-*.tar.gz
    fi
    GGML_SOURCE=$(ls -d "$work"/llama_cpp_python-*/vendor/llama.cpp | tail -n 1)
fi
include=$GGML_SOURCE/ggml/include
[ -d "$include" ] || include=$GGML_SOURCE/include
[ -f "$include/ggml-cpu.h" ] || skip "$GGML_SOURCE has no sources of ggml"
echo "building ggml of $GGML_SOURCE" >&2
cmake -S "$GGML_SOURCE" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
    -DGGML_OPENMP=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_CURL=OFF \
    >"$work/build.log" 2>&1 &&
    cmake --build "$work/build" -j "$(nproc)" --target ggml >>"$work/build.log" 2>&1 ||
    skip "ggml cannot be built; see $work/build.log"
lib=$work/build/ggml/src
[ -f "$lib/libggml.a" ] || lib=$work/build/src
cc -std=gnu17 -O2 -I "$include" -c "$root/tests/bench/ggml_attend.c" -o "$work/ggml_attend.o"
c++ "$work/ggml_attend.o" "$lib/libggml.a" "$lib/libggml-cpu.a" "$lib/libggml-base.a" -lpthread -lm -ldl \
    -o "$work/ggml_attend"

# ---- rounds ----------------------------------------------------------------------------------------------------------
# 64 MiB of binary16 for 8 KV heads of dimension 128 is 16384 keys, as in `bench attend`
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT
for round in $(seq "$rounds"); do
    "$lab" bench attend --repeat 10 --threads "$threads" --json >"$results/kvcobra.$round"
    for type in f16 q8_0 q4_0; do
        "$work/ggml_attend" "$type" 128 8 4 16384 "$threads" 10 >"$results/$type.$round"
    done
done
python3 - "$results" "$rounds" "$threads" <<'PY'
import json, statistics, sys

folder, rounds, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3]
types = ["f16", "q8_0", "q4_0"]
runs = [json.load(open(f"{folder}/kvcobra.{i + 1}")) for i in range(rounds)]
ggml = {t: [float(open(f"{folder}/{t}.{i + 1}").read().split()[0]) for i in range(rounds)] for t in types}
print(f"CPU {runs[0]['cpu']}, {threads} threads, {rounds} rounds; ns per key and KV head, the minimum of each round\n")
for t in types:
    print(f"ggml {t:<5} {min(ggml[t]):8.2f} to {max(ggml[t]):.2f}")
print("\nratio of ggml to packed, minimum / median / maximum over the rounds; above 1, packed is faster\n")
for i, row in enumerate(runs[0]["rows"]):
    if not row["measured"] or row["shape"]["d"] != 128:
        continue
    packed = [r["rows"][i]["packed_ns"]["min"] for r in runs]
    cells = []
    for t in types:
        ratios = sorted(g / p for g, p in zip(ggml[t], packed))
        cells.append(f"{t} {ratios[0]:.2f} / {statistics.median(ratios):.2f} / {ratios[-1]:.2f}")
    print(f"{row['cache']:<42} {row['instructions']:<13} {min(packed):7.2f} ns   " + "   ".join(cells))
PY
