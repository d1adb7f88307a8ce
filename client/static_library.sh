#!/bin/sh
# static_library.sh OUTPUT AR OBJCOPY COMPILER... -- ARCHIVE...: makes the static library that is installed.
#
# It has one object: all of the first archive, and what that needs of the others. Hidden symbols become local, so that only the
# functions of the public headers are global, as in the shared library: no other name can collide with one of the user's program,
# and both libraries, which contain some of the same code, can be linked into one program.
set -eu

output=$1 ar=$2 objcopy=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
object=$folder/$(basename "$output" .a).o

compiler=
while [ "$1" != -- ]; do
    compiler="$compiler $1"
    shift
done
first=$2
shift 2
# the compiler is a list of words
# shellcheck disable=SC2086
$compiler -r -nostdlib -o "$object" -Wl,--whole-archive "$first" -Wl,--no-whole-archive -Wl,--start-group "$@" -Wl,--end-group
"$objcopy" --localize-hidden "$object"
rm -f "$output"
"$ar" crD "$output" "$object"
