#!/bin/sh
# Runs a kit in a bare Debian that has nothing of ours: debootstrap's smallest variant and xz, no network. The driver is the stand-in of a
# build, so the kit's numbers mean nothing; what counts is that every program starts and every test passes.
#
#     sh tests/gpu/bare.sh KIT STANDIN [SUITE]      STANDIN: the folder tests/standin of a build; SUITE: bookworm (default) or bullseye
#
# Needs root and debootstrap. Exit status: that of run.sh; 77: something is missing.
set -eu

[ $# -ge 2 ] && [ -f "$1/run.sh" ] && [ -e "$2/libcuda.so.1" ] || {
    echo "usage: sh tests/gpu/bare.sh KIT STANDIN [SUITE]; tests/gpu/kit.sh makes a kit, meson builds tests/standin" >&2
    exit 2
}
command -v debootstrap >/dev/null || {
    echo "bare.sh: skipped: there is no debootstrap (sh tools/setup.sh boot)"
    exit 77
}
[ "$(id -u)" -eq 0 ] || {
    echo "bare.sh: skipped: debootstrap needs root"
    exit 77
}

machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
debootstrap --variant=minbase --include=xz-utils "${3:-bookworm}" "$machine/debian" >"$machine/log" 2>&1 || {
    tail -n 5 "$machine/log" >&2
    echo "bare.sh: debootstrap failed" >&2
    exit 1
}
mkdir "$machine/debian/kit" "$machine/debian/driver"
cp "$1"/* "$machine/debian/kit/"
cp -L "$2"/libcuda.so.1 "$2"/libnvidia-ml.so.1 "$machine/debian/driver/"
# no network and processes of its own
unshare --net --pid --fork --mount sh -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' \
    "$machine/debian" env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin KVC_DRIVER=/driver /kit/run.sh --seconds 3600 smoke doctor tests
