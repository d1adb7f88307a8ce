#!/bin/sh
# The examples, built in the tree and again against an installed tree with pkg-config, and with CMake if it is here: embedded
# with a table file, shared with a real daemon, calibrate with a model of its own. Arguments after the usual four: BUILD_ROOT MESON SANITIZE TABLE EXAMPLE...
KVCOBRA=$1 KVCOBRAD=$2 ROOT=$4 BUILD=$5 MESON=$6 SANITIZE=$7 TABLE=$8
shift 8
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# operates COMMAND...: what a program that operates the daemon prints and does, with a page that no process holds
operates() {
    expect "$1: the tenants" 0 "$@" "$dir/operator.sock"
    grep -qE "^uid-$(id -u): [1-9][0-9]* pages, [0-9]+ hits, [0-9]+ misses$" "$dir/out" && ok "$1: a tenant" || not_ok "$1: a tenant"
    expect "$1: evicts" 0 "$@" "$dir/operator.sock" evict "uid-$(id -u)"
    grep -qE "^evicted [1-9][0-9]* pages of uid-$(id -u)$" "$dir/out" && ok "$1: evicted" || not_ok "$1: evicted"
    expect "$1: evicts from a stranger" 1 "$@" "$dir/operator.sock" evict stranger
    grep -q stranger "$dir/err" && ok "$1: the daemon's sentence" || not_ok "$1: the daemon's sentence"
    expect "$1: refused on the clients' socket" 1 "$@" "$dir/kvcobra.sock" evict "uid-$(id -u)"
}

# runs EMBEDDED SHARED CALIBRATE OPERATE: the examples, with a daemon of their own
runs() {
    embedded=$1 shared=$2 calibrate=$3 operate=$4
    expect "embedded" 0 "$embedded" "$TABLE"
    grep -q '^2048 tokens' "$dir/out" && ok "embedded: tokens" || not_ok "embedded: tokens"
    # random tables leave a tenth of the error of these vectors; no codec, or a wrong layout, leaves all of it
    python3 - "$dir/out" <<'PY' && ok "embedded: error and bits" || not_ok "embedded: error and bits"
import re, sys
text = open(sys.argv[1]).read()
errors = [float(x) for x in re.findall(r"error of keys ([0-9.]+), of values ([0-9.]+)", text)[0]]
bits = [float(x) for x in re.findall(r"true bits per number: ([0-9.]+) \(codes ([0-9.]+), padding and headers ([0-9.]+), "
                                     r"exact tokens ([0-9.]+)\)", text)[0]]
sys.exit(not (all(0 < e < 0.3 for e in errors) and 2 < bits[1] < 3.1 and abs(bits[0] - sum(bits[1:])) < 0.002))
PY
    expect "embedded without a table" 2 "$embedded"
    expect "embedded with another file" 1 "$embedded" "$ROOT/LICENSE"
    grep -q 'allocation table' "$dir/err" && ok "embedded: the sentence" || not_ok "embedded: the sentence"

    expect "calibrate" 0 "$calibrate" "$dir/made-up.stats"
    # the error of new text is near that of the text that was calibrated on; sinks and newest tokens are exact
    python3 - "$dir/out" <<'PY' && ok "calibrate: error and bits" || not_ok "calibrate: error and bits"
import re, sys
text = open(sys.argv[1]).read()
bpd, k, v = (float(x) for x in re.findall(r"([0-9.]+) bits per number.* error of keys ([0-9.]+), of values ([0-9.]+)", text)[0])
new_k, new_v = (float(x) for x in re.findall(r"tokens: error of keys ([0-9.]+), of values ([0-9.]+)", text)[0])
sys.exit(not (2.9 < bpd <= 3 and 0 < k < 0.03 and 0 < v < 0.03 and 0 < new_k < 0.03 and 0 < new_v < 0.03))
PY
    expect "solve with its statistics" 0 "$KVCOBRA" solve "$dir/made-up.stats" --bpd 2 -o "$dir/made-up.table"
    expect "calibrate without a file" 2 "$calibrate"
    expect "calibrate into a missing folder" 1 "$calibrate" "$dir/nowhere/made-up.stats"
    grep -q "$dir/nowhere" "$dir/err" && ok "calibrate: the sentence" || not_ok "calibrate: the sentence"

    mkfifo "$dir/ready"
    "$KVCOBRAD" --socket "$dir/kvcobra.sock" --operator-socket "$dir/operator.sock" --pool-bytes 64M --arena-bytes 8M \
        --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
    "$KVCOBRA" table stage "$TABLE" --socket "$dir/operator.sock" >/dev/null
    digest=$("$KVCOBRA" table list --socket "$dir/operator.sock" --json | python3 -c 'import json, sys
print(json.load(sys.stdin)[0]["model"])')
    expect "shared without an active table" 1 "$shared" find "$digest" "$dir/kvcobra.sock"
    table=$("$KVCOBRA" table list --socket "$dir/operator.sock" --json | python3 -c 'import json, sys
print(json.load(sys.stdin)[0]["digest"])')
    "$KVCOBRA" table activate "$table" --socket "$dir/operator.sock" >/dev/null
    expect "shared finds nothing" 0 "$shared" find "$digest" "$dir/kvcobra.sock"
    grep -qx 'found 0 of 512 tokens' "$dir/out" && ok "shared: nothing" || not_ok "shared: nothing"
    expect "shared publishes" 0 "$shared" publish "$digest" "$dir/kvcobra.sock"
    grep -qx 'published 512 of 512 tokens' "$dir/out" && ok "shared: published" || not_ok "shared: published"
    expect "shared finds" 0 "$shared" find "$digest" "$dir/kvcobra.sock"
    grep -qx 'found 448 of 512 tokens' "$dir/out" && ok "shared: found" || not_ok "shared: found"
    grep -qE '^their error is 0\.[012][0-9]*; the engine computes the other 64$' "$dir/out" && ok "shared: error" ||
        not_ok "shared: error"
    expect "shared with a short digest" 2 "$shared" find 1234 "$dir/kvcobra.sock"
    [ -z "$operate" ] || operates "$operate"
    python=/usr/bin/python3 # Debian's, which has the packages
    if [ -z "$operate" ] || ! command -v protoc >/dev/null || ! $python -c 'import google.protobuf, cffi' 2>/dev/null; then
        skip "operate.py: there is no protoc, protobuf or cffi for Python"
    else
        expect "shared publishes again" 0 "$shared" publish "$digest" "$dir/kvcobra.sock"
        protoc --python_out="$dir" --proto_path="$ROOT/proto" kvcobra.proto
        # Python is not built with the sanitizers: their library must come first, and what Python leaks is not ours
        preload=
        case $SANITIZE in *address*) preload=$(${CC:-cc} -print-file-name=libasan.so) ;; esac
        operates env PYTHONPATH="$BUILD/client/python:$dir" KVCOBRA_LIBRARY="$BUILD/client/libkvcobra.so.0" \
            LD_PRELOAD="$preload" ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" $python -B "$ROOT/examples/operate.py"
    fi
    kill -TERM "$daemon_pid"
    wait "$daemon_pid" && ok "the daemon ends" || not_ok "the daemon ends"
    daemon_pid=
    expect "shared without a daemon" 1 "$shared" find "$digest" "$dir/kvcobra.sock"
    rm -f "$dir/ready"
}

runs "$1" "$2" "$3" "$4"

command -v pkg-config >/dev/null || { skip "pkg-config is not here"; finish; }
expect "meson install" 0 "$MESON" install -C "$BUILD" --no-rebuild --destdir "$dir/root"
pc=$(find "$dir/root" -name kvcobra.pc)
installed=$(find "$dir/root" -type d -path '*/doc/kvcobra/examples')
[ -n "$pc" ] && [ -n "$installed" ] && ok "pkg-config file and examples are installed" ||
    not_ok "pkg-config file and examples are installed"
PKG_CONFIG_PATH=$(dirname "$pc") PKG_CONFIG_SYSROOT_DIR=$dir/root
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
library=$(dirname "$(find "$dir/root" -name libkvcobra.so)")
[ "$SANITIZE" = none ] && flags= || flags=-fsanitize=$SANITIZE
mkdir "$dir/bin"
for example in embedded shared calibrate; do
    packages=kvcobra
    [ $example = calibrate ] && packages="kvcobra kvcobra-alloc"
    # shellcheck disable=SC2046,SC2086
    expect "cc $example.c" 0 ${CC:-cc} -std=c99 -Wall -Wextra -Werror -pedantic $flags -o "$dir/bin/$example" "$installed/$example.c" \
        $(pkg-config --cflags --libs $packages) -lm -Wl,-rpath,"$library"
done
operate=
if command -v protoc-c >/dev/null; then
    expect "protoc-c" 0 protoc-c --c_out="$dir" --proto_path="$dir/root$(unset PKG_CONFIG_SYSROOT_DIR && pkg-config --variable=protodir kvcobra)" \
        kvcobra.proto
    # shellcheck disable=SC2046,SC2086
    expect "cc operate.c" 0 ${CC:-cc} -std=c99 -Wall -Wextra -Werror $flags -o "$dir/bin/operate" "$installed/operate.c" \
        "$dir/kvcobra.pb-c.c" -I"$dir" $(pkg-config --cflags --libs kvcobra) \
        $(unset PKG_CONFIG_SYSROOT_DIR && pkg-config --cflags --libs libprotobuf-c) -Wl,-rpath,"$library"
    operate=$dir/bin/operate
else
    skip "protoc-c is not here"
fi
runs "$dir/bin/embedded" "$dir/bin/shared" "$dir/bin/calibrate" "$operate"

# the same with CMake, which finds the libraries by pkg-config
if command -v cmake >/dev/null; then
    # with a sysroot, pkg-config moves the folders of the system's libraries there, and CMake wants them to exist
    for path in $(pkg-config --cflags-only-I kvcobra kvcobra-alloc); do
        mkdir -p "${path#-I}"
    done
    expect "cmake" 0 cmake -S "$installed" -B "$dir/cmake" -DCMAKE_C_FLAGS="$flags"
    expect "cmake --build" 0 cmake --build "$dir/cmake"
    expect "embedded by CMake" 0 "$dir/cmake/embedded" "$TABLE"
    expect "calibrate by CMake" 0 "$dir/cmake/calibrate" "$dir/cmake.stats"
    expect "shared by CMake, without a digest" 2 "$dir/cmake/shared" find
else
    skip "cmake is not here"
fi

# the static libraries: programs that need no shared one of ours, also with both in one program
for example in embedded calibrate; do # expect has a `name` of its own
    archives=$library/libkvcobra.a
    packages=kvcobra
    [ $example = calibrate ] && archives="$library/libkvcobra-alloc.a $archives" packages="kvcobra-alloc kvcobra"
    # shellcheck disable=SC2046,SC2086
    expect "cc $example.c, static" 0 ${CC:-cc} -std=c99 $flags -o "$dir/bin/$example-static" "$installed/$example.c" \
        $(pkg-config --cflags kvcobra) $archives $(pkg-config --static --libs-only-l $packages | sed 's/-lkvcobra[-a-z]*//g') -lm
    readelf -d "$dir/bin/$example-static" >"$dir/needed" && ! grep -F libkvcobra "$dir/needed" &&
        ok "$example, static: it needs no shared library of ours" || not_ok "$example, static: it needs a shared library"
done
expect "embedded, static" 0 "$dir/bin/embedded-static" "$TABLE"
expect "calibrate, static" 0 "$dir/bin/calibrate-static" "$dir/static.stats"
if [ "$SANITIZE" = none ]; then
    for name in libkvcobra libkvcobra-alloc; do
        nm -D --defined-only "$library/$name.so" | sed -n 's/.* T \([a-z_]*\)@.*/\1/p' | sort >"$dir/shared.names"
        nm -g --defined-only "$library/$name.a" | sed -n 's/^[0-9a-f]* [A-Z] //p' | sort >"$dir/static.names"
        [ -s "$dir/shared.names" ] && cmp -s "$dir/shared.names" "$dir/static.names" && ok "$name.a: the same names" ||
            not_ok "$name.a: other names than $name.so: $(diff "$dir/shared.names" "$dir/static.names")"
    done
fi

# for clients without the library
protos=$(unset PKG_CONFIG_SYSROOT_DIR && pkg-config --variable=protodir kvcobra)
cmp "$ROOT/proto/kvcobra.proto" "$dir/root$protos/kvcobra.proto" && ok "the messages are installed" ||
    not_ok "the messages are installed"
cmp "$ROOT/client/python/raw_client.py" "$installed/raw_client.py" && ok "the client in Python is installed" ||
    not_ok "the client in Python is installed"
finish
