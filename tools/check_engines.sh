#!/bin/sh
# Tests KV-COBRA with real engines: transformers, vLLM and llama.cpp, which share one model through kvcobrad. The last line
# counts: N passed, N failed, N skipped. Exit status 0 if no test failed. Any user can run it, from any directory and any
# number of times. tests/engines/README.md has the time and the space that it takes.
#
# KVCOBRA_ENGINES_VENV and KVCOBRA_ENGINES_LLAMA name a virtual environment with the packages of
# tests/engines/requirements.txt, and a folder where llama.cpp is installed. Without them both are made in the user's cache.
# What cannot be had is skipped, with a sentence.
#
#     sh tools/check_engines.sh --short    without the tests that start vLLM's engines, which take up to half an hour, and
#                                          with half of lm-eval's questions
set -eu

vllm_engines="client/python/tests/test_vllm_engine.py client/python/tests/test_vllm_http.py client/python/tests/test_vllm_page.py
    client/python/tests/test_vllm_tiny.py"
if [ "${1:-}" = --short ]; then
    vllm_engines=
    export KVC_HF_QUESTIONS=2
fi

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() {
    echo "check_engines: $*"
}

die() {
    echo "check_engines: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || die "neither XDG_CACHE_HOME nor HOME is set, so there is no folder for the engines"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra/engines
folder=build-engines
needs=tests/engines
mkdir -p "$cache" "$folder"

# have_space GIGABYTES: whether the cache has that much space left
have_space() {
    [ "$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1000000) }')" -ge "$1" ]
}

# logged NAME COMMAND...: runs a command whose output is read only if it fails
logged() {
    log=$folder/$1.log
    shift
    run "$@" >"$log" 2>&1
}

# ---- packages ----

# The virtual environment gets the stamp of its requirements when it is complete.
make_venv() {
    venv=$cache/venv
    stamp=$(cat "$needs/requirements.txt" "$needs/override.txt" | sha256sum)
    [ "$(cat "$venv/stamp" 2>/dev/null || true)" != "$stamp" ] || return 0
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        say "Python is older than 3.11, which vLLM needs: transformers and vLLM are skipped"
        return 1
    }
    have_space 8 || {
        say "less than 8 GB are free in $cache: transformers and vLLM are skipped"
        return 1
    }
    say "installing transformers and vLLM in $venv, about 6 GB"
    rm -f "$venv/stamp"
    if logged venv python3 -m venv "$venv" && logged pip "$venv/bin/python" -m pip install --quiet uv &&
        logged packages "$venv/bin/uv" pip install --python "$venv/bin/python" --override "$needs/override.txt" \
            -r "$needs/requirements.txt"; then
        echo "$stamp" >"$venv/stamp"
        return 0
    fi
    say "the packages cannot be installed ($(tail -n 1 "$log")): transformers and vLLM are skipped"
    return 1
}

# Compiles the library alone, from the source package, which pip checks against the digest in llama.txt. It is not compiled for
# the processor of this machine: on one with AMX this release of llama.cpp ends with SIGSEGV where it multiplies matrices of
# Q4_1, and a folder that several machines share must serve them all.
llama_native=OFF
make_llama() {
    llama=$cache/llama-$({ cat "$needs/llama.txt"; echo "GGML_NATIVE=$llama_native"; } | sha256sum | cut -c 1-12)
    [ ! -e "$llama/lib/pkgconfig/llama.pc" ] || return 0
    have_space 1 || {
        say "less than 1 GB is free in $cache: llama.cpp is skipped"
        return 1
    }
    work=$cache/llama.work
    rm -rf "$work"
    mkdir "$work"
    say "downloading and compiling llama.cpp, some 5 minutes of processor time"
    # shellcheck disable=SC2016 # $ORIGIN is for the dynamic linker
    if logged llama-download python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --require-hashes --dest "$work" -r "$needs/llama.txt" &&
        tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" &&
        logged llama-setup cmake -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" -G Ninja \
            -DCMAKE_BUILD_TYPE=Release "-DGGML_NATIVE=$llama_native" -DCMAKE_INSTALL_PREFIX="$llama.new" -DCMAKE_INSTALL_LIBDIR=lib \
            '-DCMAKE_INSTALL_RPATH=$ORIGIN' -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF \
            -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF &&
        logged llama-build ninja -C "$work/build" && logged llama-install cmake --install "$work/build"; then
        # the folder gets its name when it is complete; llama.pc names it
        sed -i "s|$llama.new|$llama|" "$llama.new/lib/pkgconfig/llama.pc"
        rm -rf "$llama" "$work"
        mv "$llama.new" "$llama"
        return 0
    fi
    say "llama.cpp cannot be downloaded or compiled ($(tail -n 1 "$log")): it is skipped"
    rm -rf "$work" "$llama.new"
    return 1
}

make_llama_server() {
    llama_server=$cache/xllamacpp
    stamp=$(sha256sum <"$needs/xllamacpp.txt")
    [ "$(cat "$llama_server/stamp" 2>/dev/null || true)" != "$stamp" ] || return 0
    say "installing llama-server in $llama_server, 90 MB"
    rm -rf "$llama_server"
    if logged xllamacpp-venv python3 -m venv "$llama_server" && logged xllamacpp "$llama_server/bin/python" -m pip install --quiet \
        --disable-pip-version-check --no-deps --require-hashes -r "$needs/xllamacpp.txt"; then
        echo "$stamp" >"$llama_server/stamp"
        return 0
    fi
    say "the package xllamacpp cannot be installed ($(tail -n 1 "$log")): llama-server is skipped"
    return 1
}

run sh tools/setup.sh build model test engines
model=$(sh tools/fetch_model.sh) || {
    say "the model could not be fetched, so nothing is tested"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

python=python3
if [ -n "${KVCOBRA_ENGINES_VENV:-}" ]; then
    venv=$KVCOBRA_ENGINES_VENV
    python=$venv/bin/python
    [ -x "$python" ] || die "KVCOBRA_ENGINES_VENV: there is no $python"
elif make_venv; then
    python=$venv/bin/python
else
    venv=
fi
if [ -n "${KVCOBRA_ENGINES_LLAMA:-}" ]; then
    llama=$KVCOBRA_ENGINES_LLAMA
    [ -e "$llama/lib/pkgconfig/llama.pc" ] || die "KVCOBRA_ENGINES_LLAMA: there is no $llama/lib/pkgconfig/llama.pc"
elif ! make_llama; then
    llama=
fi
make_llama_server || llama_server=

# ---- KV-COBRA ----

say "building in $folder"
# the options of check.sh's first build, so that ccache has its objects
set -- --buildtype=debugoptimized -Dwerror=true -Dtests=enabled -Dcuda=disabled "-Dllama=$([ -n "$llama" ] && echo enabled || echo disabled)" \
    "-Dpkg_config_path=${llama:+$llama/lib/pkgconfig}"
[ ! -f "$folder/build.ninja" ] || set -- --reconfigure "$@"
logged setup meson setup "$@" "$folder" || {
    cat "$log" >&2
    die "meson could not set up $folder"
}
# of the tests only the two programs that the tests with engines call, and the stand-in for a GPU's driver
run ninja -C "$folder" --quiet daemon/kvcobrad tools/kvcobra python-package tests/python/write_table tests/e2e/cli/tiny_model \
    tests/standin/libcuda.so.1 ${llama:+client/llama_share} || die "the build failed"

kvcobra=$folder/tools/kvcobra
table=$folder/smollm2.table
second_table=$folder/smollm2-4.table # other pages than the first one's
if ! "$kvcobra" inspect "$table" >/dev/null 2>&1 || ! "$kvcobra" inspect "$second_table" >/dev/null 2>&1; then
    say "making tables of 3 and 4 bits per number"
    run "$kvcobra" calibrate "$model" --text DESIGN.md --text client/kvcobra.h --text client/README.md --tokens 6144 \
        -o "$folder/smollm2.stats" --quiet >/dev/null
    run "$kvcobra" solve "$folder/smollm2.stats" --bpd 3 -o "$table" >/dev/null
    run "$kvcobra" solve "$folder/smollm2.stats" --bpd 4 -o "$second_table" >/dev/null
    rm -f "$folder/smollm2.stats"
fi

models=
if [ -n "$venv" ]; then
    models=$cache/models
    logged models "$python" -B "$needs/convert.py" "$model" "$models" || {
        cat "$log" >&2
        die "the model could not be converted to safetensors"
    }
fi

# ---- tests ----

export KVC_SOURCE_ROOT="$root" KVCOBRA_LIBRARY="$root/$folder/client/libkvcobra.so.0"
export KVCOBRA_ALLOC_LIBRARY="$root/$folder/alloc/api/libkvcobra-alloc.so.0"
export KVC_KVCOBRAD="$root/$folder/daemon/kvcobrad" KVC_KVCOBRA="$root/$kvcobra" KVC_TINY_MODEL="$root/$folder/tests/e2e/cli/tiny_model"
export KVC_ENGINE_GGUF="$model" KVC_ENGINE_TABLE="$root/$table" KVC_ENGINE_SECOND_TABLE="$root/$second_table"
export KVC_ENGINE_MODELS="$models"
export KVC_WRITE_TABLE="$root/$folder/tests/python/write_table" KVC_HF_MODEL="${models:+$models/f32}" KVC_HF_TABLE="$root/$table"
export KVC_STANDIN_CUDA="$root/$folder/tests/standin"
export KVC_LLAMA_SERVER="${llama_server:+$llama_server/bin/python}"
export KVC_LLAMA_SHARE="${llama:+$root/$folder/client/llama_share}" PYTHONPATH="$root/$folder/client/python"
# shellcheck disable=SC2086 # paths without spaces, or nothing
run "$python" -B tests/engines/run.py tests/engines/test_*.py client/python/tests/test_hf*.py \
    client/python/tests/test_calibrate.py client/python/tests/test_lm_eval.py client/python/tests/test_vllm_[!ehpt]*.py \
    client/python/tests/test_vllm_pure.py $vllm_engines
