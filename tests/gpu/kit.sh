#!/bin/sh
# Builds everything that needs a GPU and packs it into one folder, with every library that it needs: tests, benches, the daemon, the mover,
# the command, the Python package. The folder goes to a machine with an NVIDIA GPU, which needs its driver and nothing of ours, no network
# and no compiler. There FOLDER/run.sh runs all of it (tests/gpu/README.md).
#
#     sh tests/gpu/kit.sh [FOLDER]      default: build-kit/kit
#
# Environment: CUDA_PATH, the folder of the toolkit (default /usr/local/cuda); KVC_KIT_BUILD, the folder of the build (default build-kit).
# The folder is replaced. Exit status 0; 1: something is missing, or the kit breaks one of its limits.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${KVC_KIT_BUILD:-$root/build-kit}
kit=${1:-$build/kit}
toolkit=${CUDA_PATH:-/usr/local/cuda}
limit_mb=45
newest_glibc=2.35 # of Ubuntu 22.04: any newer system runs the kit

die() {
    echo "tests/gpu/kit.sh: $*" >&2
    exit 1
}

[ -x "$toolkit/bin/nvcc" ] || die "there is no $toolkit/bin/nvcc: set CUDA_PATH to the folder of the toolkit"
command -v patchelf >/dev/null || die "there is no patchelf: install Debian's package of this name"
case $kit in /*) ;; *) kit=$PWD/$kit ;; esac
[ ! -e "$kit" ] || [ -f "$kit/run.sh" ] || die "$kit exists and is no kit: name another folder"

# What runs on the GPU, in the order of run.sh: programs below BUILD, without the folder's name
tests="unit/gpu/cuda/test_cuda_abi unit/gpu/cuda/test_cuda_memory unit/gpu/cuda/test_cuda_append unit/gpu/cuda/test_cuda_kernels
    unit/gpu/cuda/test_cuda_launch unit/client/test_client_gpu_check unit/client/test_client_gpu_seq
    unit/client/test_client_gpu_misuse unit/client/test_client_gpu_graph unit/client/test_client_gpu_batch
    unit/client/test_client_gpu_staged unit/client/test_client_gpu_copied unit/client/test_client_gpu_staged_refused
    unit/mover/test_mover_serve
    e2e/test_client_gpu e2e/test_client_gpu_errors e2e/test_client_gpu_host_pages e2e/test_client_gpu_restart"
cpu_tests="unit/gpu/test_attend_packed unit/gpu/test_attend_packed_grid unit/gpu/test_codec unit/gpu/test_ops"
programs="tests/gpu/bench_gpu_attend tests/gpu/bench_gpu_extents tests/gpu/bench_gpu_transfer daemon/kvcobrad mover/kvcobra-mover tools/kvcobra
    lab/kvcobra-lab tests/python/write_table"

[ -f "$build/build.ninja" ] || meson setup "$build" "$root" --buildtype=release -Dcuda=enabled -Dtests=enabled -Dsystemd=enabled \
    -Dtoolkit_path="$toolkit" -Dc_link_args="-Wl,--disable-new-dtags,-rpath,\$ORIGIN/../lib"
for t in $tests $cpu_tests; do
    programs="$programs tests/$t"
done
# shellcheck disable=SC2086 # words
ninja -C "$build" --quiet $programs python-package

content=$(mktemp -d) # what the archive of the kit holds
trap 'rm -rf "$content"' EXIT
mkdir -p "$content/bin" "$content/lib" "$content/libexec" "$content/tests"
for p in $programs; do
    case $p in
    tests/*/test_*) to=$content/tests ;;
    mover/*) to=$content/libexec ;;
    *) to=$content/bin ;;
    esac
    cp "$build/$p" "$to/"
done
cp "$build/client/libkvcobra.so.0" "$build/alloc/api/libkvcobra-alloc.so.0" "$content/lib/"

# Every library, but those of the C library, which belong to the machine
of_the_machine='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv)\.so'
find "$content" -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
    echo "$name" | grep -Eq "$of_the_machine" || [ -e "$content/lib/$name" ] || cp -L "$path" "$content/lib/$name"
done
find "$content" -type f -exec strip --strip-unneeded {} +
# The programs were linked with this path; their libraries find each other by it, too
find "$content/lib" -type f -exec patchelf --force-rpath --set-rpath "\$ORIGIN" {} \;

newest=$(find "$content" -type f -exec objdump -T {} + | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
[ "$(printf '%s\n' "$newest" "$newest_glibc" | sort -V | tail -n 1)" = "$newest_glibc" ] || {
    find "$content" -type f -exec objdump -T {} + | grep -E "file format|GLIBC_$newest\\b" | grep -B 1 "GLIBC_$newest" >&2
    die "these symbols need glibc $newest, the kit promises $newest_glibc"
}

for t in $tests; do
    echo "${t##*/}"
done >"$content/tests/list"
for t in $cpu_tests; do
    echo "${t##*/}"
done >"$content/tests/list-cpu"
{
    git -C "$root" log -1 --format='revision %h' 2>/dev/null || echo "revision unknown"
    "$toolkit/bin/nvcc" --version | tail -n 2 | head -n 1
} >"$content/VERSION"
cp -R "$build/client/python" "$content/python"
mkdir "$content/python-tests"
for f in support test_gpu test_vllm_gpu torch_on_standin vllm_standin; do
    cp "$root/client/python/tests/$f.py" "$content/python-tests/"
done
find "$content/python" -name __pycache__ -exec rm -rf {} +
for version in 3.10 3.11 3.12 3.13; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux2014_x86_64 \
        --platform manylinux_2_17_x86_64 --python-version "$version" --implementation cp --dest "$content/wheels" cffi ||
        die "cannot get the wheel of cffi for Python $version from PyPI"
done
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$content/wheels" pycparser ||
    die "cannot get the wheel of pycparser from PyPI"

rm -rf "$kit"
mkdir -p "$kit"
# one dictionary over all programs: each has the same kernels inside
tar -C "$content" -cf - . | xz --lzma2=preset=2,dict=64MiB,mf=hc4 >"$kit/kit.tar.xz"
cp "$root/tests/gpu/run.sh" "$root/tests/gpu/report.py" "$root/tests/gpu/torch_baseline.py" "$root/tests/gpu/torch_prompt.py" "$root/tests/gpu/README.md" "$root/LICENSE" "$kit/"
megabytes=$(($(du -sk "$kit" | cut -f 1) / 1000))
[ "$megabytes" -le "$limit_mb" ] || die "$kit has $megabytes MB, at most $limit_mb are allowed"
echo "$kit: $megabytes MB, needs glibc $newest; on a machine with a GPU: $kit/run.sh"
