#!/bin/sh
# test_check_abi.sh CC CHECK: shows that check_abi.sh finds changes of the ABI, and only those, in a library of a few lines.
set -eu
cc=$1 check=$2
command -v abidw >/dev/null || {
    echo "skipped: abigail-tools is not installed"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/client"
unset KVC_SANITIZE
n_failed=0

header='#pragma once
typedef struct kvc_a kvc_a;
enum kvc_e { KVC_E = 1 };
typedef struct kvc_b { unsigned long struct_bytes; int x, y; enum kvc_e e; } kvc_b;
int kvc_open(kvc_a **ret, const kvc_b *b);
int kvc_close(kvc_a *a);'
source='#include "kvcobra.h"
#include "kvcobra-call.h"
struct kvc_a { int secret; };
typedef struct kvc_c { int x; } kvc_c;
int kvc_open(kvc_a **ret, const kvc_b *b) { (*ret)->secret = b->x; return 0; }
int kvc_close(kvc_a *a) { return a->secret; }
int kvc_evaluate(const kvc_c *c);
int kvc_evaluate(const kvc_c *c) { return c->x; }'
map='KVCOBRA_0.1 { global: kvc_open; kvc_close; local: *; };
KVCOBRA_PRIVATE { global: kvc_evaluate; };'

# compile HEADER SOURCE MAP [OPTION...], -g without options
compile() {
    printf '%s\n' "$1" >"$work/client/kvcobra.h"
    printf '#include "kvcobra.h"\n' >"$work/client/kvcobra-call.h"
    printf '#include "kvcobra.h"\n' >"$work/client/kvcobra-gpu.h"
    printf '%s\n' "$2" >"$work/library.c"
    printf '%s\n' "$3" >"$work/library.map"
    shift 3
    [ $# -gt 0 ] || set -- -g
    "$cc" -shared -fPIC "$@" -I "$work/client" "$work/library.c" -o "$work/library.so" \
        -Wl,--version-script,"$work/library.map"
}

# expect STATUS WHAT
expect() {
    status=0
    sh "$check" "$work/library.so" "$work/baseline.abi" "$work/client/"* >"$work/out" 2>&1 || status=$?
    if [ "$status" = "$1" ]; then
        echo "ok   $2"
    else
        echo "FAIL $2: status $status instead of $1"
        cat "$work/out"
        n_failed=$((n_failed + 1))
    fi
}

# with PATTERN REPLACEMENT TEXT: TEXT, in which PATTERN must be
with() {
    new=$(printf '%s\n' "$3" | sed "s/$1/$2/")
    [ "$new" != "$3" ] || { echo "nothing to replace: $1" >&2; exit 1; }
    printf '%s\n' "$new"
}

compile "$header" "$source" "$map"
sh "$check" --write "$work/library.so" "$work/baseline.abi" "$work/client/"*
expect 0 "no change"
compile "$header" "$(with 'int secret' 'long other; int secret' "$source")" "$map"
expect 0 "a struct of the library alone"
compile "$header" "$(with 'kvc_c { int x' 'kvc_c { long other; int x' "$source")" "$map"
expect 0 "a function in KVCOBRA_PRIVATE"
compile "$header" "$source" "$map" -g -O2
expect 0 "another optimisation level"
compile "$(with 'int x, y' 'int y, x' "$header")" "$source" "$map"
expect 1 "members that change places"
compile "$(with 'int x, y' 'long x, y' "$header")" "$source" "$map"
expect 1 "a member of another type"
compile "$(with 'enum kvc_e e;' 'enum kvc_e e; long z;' "$header")" "$source" "$map"
expect 1 "a member at the end, until the baseline has it"
compile "$(with 'KVC_E = 1' 'KVC_E = 2' "$header")" "$source" "$map"
expect 1 "an enumerator of another value"
compile "$(with 'close(kvc_a \*a' 'close(kvc_a *a, int b' "$header")" "$(with 'close(kvc_a \*a' 'close(kvc_a *a, int b' "$source")" "$map"
expect 1 "a parameter more"
compile "$header" "$source" "$(with ' kvc_close;' '' "$map")"
expect 1 "a function less"
compile "$header" "$(with 'kvc_c \*c);' 'kvc_c *c); int kvc_more(void); int kvc_more(void) { return 0; }' "$source")" \
    "$(with 'kvc_close;' 'kvc_close; kvc_more;' "$map")"
expect 1 "a function more, until the baseline has it"
compile "$header" "$source" "$map" -O2
expect 77 "no debug information"
[ "$n_failed" = 0 ]
