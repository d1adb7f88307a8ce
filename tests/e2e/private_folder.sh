#!/bin/sh
# Runs the tests whose children become another user from a folder that the other user cannot read: home folders have mode 0700,
# and so may every folder above a checkout.
#
#     private_folder.sh KVCOBRAD MOVER DRIVER_FOLDER TEST [CASE]...
#
# TEST is a test program; CASE is the one case of it to run, or "all". Programs and the stand-in driver are copied.
set -eu

if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: only root can become another user"
    exit 77
fi
kvcobrad=$1
mover=$2
drivers=$3
shift 3

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 0700 "$folder"
mkdir "$folder/drivers"
cp "$kvcobrad" "$mover" "$folder"
cp "$drivers"/lib*.so.1 "$folder/drivers"
KVC_KVCOBRAD=$folder/$(basename "$kvcobrad")
KVC_MOVER=$folder/$(basename "$mover")
LD_LIBRARY_PATH=$folder/drivers
export KVC_KVCOBRAD KVC_MOVER LD_LIBRARY_PATH

while [ $# -ge 2 ]; do
    program=$folder/$(basename "$1")
    cp "$1" "$program"
    if [ "$2" = all ]; then
        "$program"
    else
        "$program" --test "$2"
    fi
    rm "$program"
    shift 2
done
