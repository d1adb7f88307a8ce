#!/bin/sh
# The product does not need the laboratory: builds it without lab/ and tests/ in build-product, installs it into a temporary
# folder, and runs the command there. The tests of the laboratory itself are `meson test -C build --suite lab`.
# The last line counts: N passed, N failed, N skipped. Exit status 0 if nothing failed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"
dir=$(mktemp -d)
trap 'stop; rm -rf "$dir"' EXIT
passed=0 failed=0

# expect WHAT COMMAND...
expect() {
    what=$1
    shift
    if run "$@" >"$dir/log" 2>&1 </dev/null; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        tail -n 30 "$dir/log" | sed 's/^/    /'
    fi
}

# says TEXT COMMAND...: the command fails with the text in its sentence
says() {
    text=$1
    shift
    ! "$@" 2>"$dir/err" && grep -qF "$text" "$dir/err"
}

[ -f build-product/build.ninja ] && again=--reconfigure || again=
# shellcheck disable=SC2086 # nothing, or one word
expect "set up" meson setup $again -Dlab=false -Dtests=disabled -Dcuda=disabled -Dwerror=true build-product
expect "build" ninja -C build-product --quiet
expect "install" meson install -C build-product --no-rebuild --destdir "$dir/root"
bin=$(dirname "$(find "$dir/root" -type f -name kvcobra -perm -100)")
LD_LIBRARY_PATH=$(dirname "$(find "$dir/root" -name 'libkvcobra.so')")
export LD_LIBRARY_PATH
expect "no kvcobra-lab" test ! -e "$bin/kvcobra-lab"
expect "kvcobra runs" "$bin/kvcobra" --version
expect "bench attend names the package" says "install the package kvcobra-lab" env PATH=/usr/bin:/bin "$bin/kvcobra" bench attend

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
