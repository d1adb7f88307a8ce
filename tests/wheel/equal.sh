#!/bin/sh
# Whether the programs of tools/wheel.sh, which zig compiles, do what those of gcc do: statistics, tables and their golden vectors, decoded
# vectors, attention, and pages in the pool are the same to the last bit, and attention takes at most 5 % longer. gcc's programs are built
# with the same OpenBLAS in FOLDER/gcc. One line per check; the last line counts: N passed, N failed, N skipped.
#
#     sh tests/wheel/equal.sh FOLDER TINY_MODEL [GGUF]    FOLDER: of tools/wheel.sh. TINY_MODEL: of a folder with -Dtests=enabled
#
# With a GGUF file, tables and pages of that model are compared too. $PYTHON: a Python with numpy and cffi (python3 by default).
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/cli/lib.sh
. "$here/../e2e/cli/lib.sh"
FOLDER=$(cd "${1:?the folder of tools/wheel.sh is needed}" && pwd) TINY_MODEL=${2:?the program tiny_model is needed}
PYTHON=${PYTHON:-python3}
export OPENBLAS_NUM_THREADS=1 # the same order of sums

zig=$(find "$FOLDER" -maxdepth 1 -type d -name 'kvcobra-*-linux-x86_64')
gcc=$FOLDER/gcc-installed
[ -n "$zig" ] || {
    skip "$FOLDER has no programs: sh tools/wheel.sh makes them"
    finish
}
"$PYTHON" -c 'import cffi, numpy' 2>/dev/null || {
    skip "$PYTHON has no cffi or no numpy"
    finish
}

build_by_gcc() {
    mkdir -p "$FOLDER/same-openblas"
    cp "$FOLDER/deps/lib/pkgconfig/openblas.pc" "$FOLDER/deps/lib/pkgconfig/lapacke.pc" "$FOLDER/same-openblas/"
    [ -f "$FOLDER/gcc/build.ninja" ] || CC="${CC:-gcc}" meson setup "$FOLDER/gcc" "$here/../.." --prefix=/ --libdir=lib --buildtype=release \
        -Db_ndebug=true -Dsystemd=disabled -Dtls=disabled -Dtests=disabled -Dllama=disabled -Dcuda=disabled "-Dpkg_config_path=$FOLDER/same-openblas" \
        "-Dc_link_args=-Wl,-rpath,\$ORIGIN/../lib" &&
        ninja -C "$FOLDER/gcc" && rm -rf "$gcc" && DESTDIR=$gcc meson install -C "$FOLDER/gcc" --no-rebuild &&
        cp "$zig"/lib/libscipy_openblas* "$gcc/lib/"
}
expect "a build by gcc with the same OpenBLAS" 0 build_by_gcc
[ -x "$gcc/bin/kvcobra" ] || finish

# same NAME MODEL: statistics and tables of both builds, and what both do with a table
same() {
    for build in zig gcc; do
        mkdir "$dir/$1-$build"
        tree=$gcc
        [ "$build" = gcc ] || tree=$zig
        expect "$1: statistics by $build" 0 "$tree/bin/kvcobra" calibrate --quick --quiet "$2" -o "$dir/$1-$build/model.stats"
        for states in 0 64; do
            expect "$1: a table with --trellis $states by $build" 0 "$tree/bin/kvcobra" solve "$dir/$1-$build/model.stats" --bpd 3 \
                --trellis "$states" -o "$dir/$1-$build/$states.table"
        done
    done
    for file in model.stats 0.table 64.table; do
        expect "$1: $file has the same bytes" 0 cmp "$dir/$1-zig/$file" "$dir/$1-gcc/$file"
    done
    expect "$1: vectors, attention and pages are the same" 0 "$PYTHON" -B "$here/bits.py" "$FOLDER/gcc/client/python" "$zig" "$gcc" \
        "$dir/$1-gcc/0.table" "$dir/$1-gcc/64.table"
    sed 's/^/     /' "$dir/out"
}
"$TINY_MODEL" "$dir/tiny.gguf"
same tiny "$dir/tiny.gguf"
[ -z "${3:-}" ] || same model "$3"

mkdir -p "$dir/lab/bin" # the wheel has no laboratory
cp "$FOLDER/installed/bin/kvcobra-lab" "$dir/lab/bin/"
ln -s "$zig/lib" "$dir/lab/lib"
expect "attention takes at most 5 % longer" 0 "$PYTHON" -B "$here/attend.py" "$dir/lab/bin/kvcobra-lab" "$gcc/bin/kvcobra-lab"
sed 's/^/     /' "$dir/out"
finish
