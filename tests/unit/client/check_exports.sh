#!/bin/sh
# check_exports.sh LIBRARY HEADER: what the shared library exports is what the header declares, no more and no less.
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
declared=$(tr '\n' ' ' <"$2" | grep -o 'KVC_EXPORT [^(;]*(' | sed 's/ *($//; s/.*[ *]//' | grep '^kvc_' | sort)
if [ "$exported" != "$declared" ]; then
    echo "exported and declared differ:"
    printf '%s\n' "$exported" >"${TMPDIR:-/tmp}/kvcobra-exported.$$"
    printf '%s\n' "$declared" | diff "${TMPDIR:-/tmp}/kvcobra-exported.$$" - || true
    rm -f "${TMPDIR:-/tmp}/kvcobra-exported.$$"
    exit 1
fi
nm -D --defined-only "$1" | grep -q '@@KVCOBRA_0.1' || { echo "symbols carry no version"; exit 1; }
printf '%s symbols\n' "$(printf '%s\n' "$exported" | wc -l)"
