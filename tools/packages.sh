#!/bin/sh
# Builds the Debian packages of this tree, also of changes that are not committed, on Debian 12 and without root.
#
#   sh tools/packages.sh [FOLDER]             the packages, in FOLDER: build-packages by default. The build runs the unit tests
#   sh tools/packages.sh --no-tests [FOLDER]  without the tests
#   sh tools/packages.sh --check [FOLDER]     the source package too, lintian without a finding, and a second build, elsewhere and
#                                             with another locale, time zone and umask, that must give the same bytes
#
# Exit status 77: packages that the build needs are missing; the sentence says how to get them.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

say() {
    echo "packages: $*"
}

die() {
    echo "packages: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

check=no
options=
folder=
for argument; do
    case $argument in
    --check) check=yes ;;
    --no-tests) options=nocheck ;;
    -*) die "'$argument' is neither --check nor --no-tests" ;;
    *)
        [ -z "$folder" ] || die "one FOLDER only; '$argument' is one argument too many"
        folder=$argument
        ;;
    esac
done
folder=${folder:-$root/build-packages}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# ---- what it needs ----

missing() {
    say "$*: sh tools/setup.sh build test packages installs it"
    exit 77
}

system=$(. /etc/os-release && echo "$ID $VERSION_ID")
[ "$system" = "debian 12" ] || {
    say "the packages are for Debian 12, and this is $system"
    exit 77
}
command -v dpkg-buildpackage >/dev/null || missing "there is no dpkg-buildpackage"
needs=$(cd "$root" && DEB_BUILD_OPTIONS=$options dpkg-checkbuilddeps ${options:+-P$options} 2>&1) ||
    missing "packages are missing (${needs##*: })"
if [ "$check" = yes ]; then
    command -v lintian >/dev/null || missing "there is no lintian"
fi

# ---- build ----

version=$(sed -n '1s/^kvcobra (\(.*\)) .*/\1/p' "$root/debian/changelog")
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kvcobra-packages.XXXXXX")
trap 'stop; rm -rf "$work"' EXIT

# copy FOLDER: the files of the tree, without those that git ignores
copy() {
    mkdir -p "$1/kvcobra-$version"
    if git -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
        git -C "$root" ls-files -z --cached --others --exclude-standard --deduplicate
    else
        (cd "$root" && find . -path './build*' -prune -o -name __pycache__ -prune -o -type f -print0)
    fi | tar -C "$root" --null --verbatim-files-from --ignore-failed-read -T - -cf - | tar -C "$1/kvcobra-$version" -xf -
}

# build FOLDER OPTIONS ARGUMENT...: dpkg-buildpackage in a copy of the tree, in FOLDER
build() {
    place=$1
    build_options=$2
    shift 2
    copy "$place"
    run env --chdir="$place/kvcobra-$version" DEB_BUILD_OPTIONS="$build_options parallel=$(nproc)" \
        dpkg-buildpackage --unsigned-source --unsigned-changes ${options:+-P$options} "$@" >"$place/log" 2>&1 || {
        cp "$place/log" "$folder/log"
        tail -n 40 "$place/log" >&2
        die "dpkg-buildpackage failed: $folder/log"
    }
}

say "building version $version"
[ "$check" = yes ] && kind=full || kind=binary
build "$work/first" "$options" --build="$kind"
rm -rf "$folder"/*.deb "$folder"/kvcobra_* "$folder/debug-symbols"
find "$work/first" -maxdepth 1 -type f ! -name log -exec cp '{}' "$folder/" ';'

if [ "$check" = yes ]; then
    say "lintian"
    run lintian --fail-on error,warning "$folder"/kvcobra_*.changes || die "lintian found something"
    say "building again"
    umask 077
    LC_ALL=C TZ=Pacific/Kiritimati build "$work/the/second/build" nocheck --build=binary
    for file in "$folder"/*.deb; do
        cmp "$file" "$work/the/second/build/$(basename "$file")" || die "two builds of $(basename "$file") differ"
    done
    say "two builds gave the same bytes"
fi
# apart: 'apt install ./*.deb' shall not install them
mkdir "$folder/debug-symbols"
mv "$folder"/*-dbgsym_*.deb "$folder/debug-symbols/"
(cd "$folder" && ls -- *.deb)
