#!/bin/sh
# check_abi.sh LIBRARY BASELINE HEADER...: compares the ABI of the installed headers in LIBRARY with BASELINE.
#
# Fails on every difference, compatible ones too, so that each change of the ABI stands in a commit. If the change keeps the
# promise of client/README.md ("What is promised"), write a new baseline with
#
#     meson compile -C build abi-baseline
#
# (abi-baseline-alloc for libkvcobra-alloc) and commit it.
#
# Counted are the symbols of LIBRARY, without the version node KVCOBRA_PRIVATE, and the types that the headers define.
# Locations and paths are left out: moving code is no change. The answer does not depend on the optimisation level. Needs
# abigail-tools, and LIBRARY with debug information and without sanitizers; otherwise the test is skipped (exit 77).
#
# check_abi.sh --write LIBRARY BASELINE HEADER...: writes BASELINE.
set -eu
write=no
if [ "$1" = --write ]; then
    write=yes
    shift
fi
library=$1 baseline=$2
shift 2

skip() {
    echo "skipped: $*"
    exit 77
}

command -v abidw >/dev/null || skip "abigail-tools is not installed"
[ "${KVC_SANITIZE:-none}" = none ] || skip "this build has sanitizers"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readelf -S "$library" >"$work/sections"
grep -q '\.debug_info' "$work/sections" || skip "$library has no debug information"
mkdir "$work/headers"
cp "$@" "$work/headers"
private=$(nm -D --defined-only "$library" | sed -n 's/.* \(kvc_[a-z_]*\)@@KVCOBRA_PRIVATE$/\1/p' | paste -sd '|')
printf '[suppress_function]\nsymbol_name_regexp = ^(%s)$\ndrop = yes\n' "$private" >"$work/private.suppr"
abidw --headers-dir "$work/headers" --drop-private-types --exported-interfaces-only --drop-undefined-syms \
    --suppressions "$work/private.suppr" --no-architecture --no-corpus-path --no-comp-dir-path --no-elf-needed \
    --no-show-locs --type-id-style hash --out-file "$work/with-paths.abi" "$library"
awk "/<abi-instr/ { sub(/ path='[^']*'/, sprintf(\" path='%d'\", ++n)) } { print }" "$work/with-paths.abi" >"$work/now.abi"

if [ "$write" = yes ]; then
    cp "$work/now.abi" "$baseline"
    exit 0
fi
if ! abidiff --no-show-locs "$baseline" "$work/now.abi"; then
    target=$(basename "$baseline" .abi | sed 's/libkvcobra/abi-baseline/')
    echo "The ABI of $(basename "$library") differs from $baseline. client/README.md says which changes are allowed. If"
    echo "this one is, write a new baseline with 'meson compile -C BUILD-FOLDER $target' and commit it."
    exit 1
fi
echo "no difference"
