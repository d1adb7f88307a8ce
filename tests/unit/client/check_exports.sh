#!/bin/sh
# check_exports.sh LIBRARY NODE=HEADER...: the symbols of each version node of the shared library are exactly those that its
# headers declare.
set -eu
library=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for pair; do
    tr '\n' ' ' <"${pair#*=}" | grep -o 'KVC_EXPORT [^(;]*(' | sed 's/ *($//; s/.*[ *]//' | grep '^kvc_' |
        sed "s/\$/@@${pair%%=*}/"
done | sort >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"

if ! diff "$work/declared" "$work/exported"; then
    echo "declared (<) and exported (>) symbols differ"
    exit 1
fi
printf '%s symbols\n' "$(wc -l <"$work/exported")"
