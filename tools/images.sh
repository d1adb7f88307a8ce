#!/bin/sh
# Builds two images for podman, docker and others, as OCI archives, without a registry and without a container runtime: kvcobrad, the
# daemon as user and group 980, and kvcobra-client, the command and the libraries. Both are a bare Debian 12 and the programs of
# tools/wheel.sh, which need nothing else. containers/README.md says how to run them.
#
#   sh tools/images.sh TARBALL [FOLDER]   TARBALL: kvcobra-VERSION-linux-x86_64.tar.xz, beside the wheel. The archives come to FOLDER:
#                                         build-images by default
#
# Needs root, buildah and debootstrap, and the network for Debian's packages (60 MB), once. Exit status 77: something is missing; the
# sentence says what.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

say() {
    echo "images: $*"
}

die() {
    echo "images: $*" >&2
    exit 1
}

missing() {
    say "$*"
    exit 77
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

[ $# -ge 1 ] && [ $# -le 2 ] || die "TARBALL and FOLDER are the arguments: sh tools/images.sh TARBALL [FOLDER]"
tarball=$1
folder=${2:-$root/build-images}
[ -f "$tarball" ] || die "there is no file $tarball: sh tools/wheel.sh makes it"
name=$(basename "$tarball" .tar.xz)
case $name in
kvcobra-*-linux-x86_64) ;;
*) die "$tarball is not called kvcobra-VERSION-linux-x86_64.tar.xz" ;;
esac
version=${name#kvcobra-}
version=${version%-linux-x86_64}
[ "$(id -u)" -eq 0 ] || missing "it takes root: files of an image belong to several users"
for program in buildah debootstrap xz; do
    command -v "$program" >/dev/null || missing "there is no $program: sh tools/setup.sh images installs it"
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# store WORDS...: buildah with its files in the folder. vfs and chroot work within a container, too
store() {
    run buildah --storage-driver vfs --root "$folder/storage" --runroot "$folder/run" "$@"
}

# ---- bare Debian ----

base=$folder/base
if [ ! -d "$base" ]; then
    say "installing a bare Debian 12"
    rm -rf "$base.part"
    run debootstrap --variant=minbase bookworm "$base.part" >"$folder/log" 2>&1 || {
        tail -n 5 "$folder/log" >&2
        rm -rf "$base.part"
        missing "debootstrap failed: the network is missing; $folder/log"
    }
    rm -rf "$base.part"/var/cache/apt/*.bin "$base.part"/var/cache/apt/archives/*.deb "$base.part"/var/lib/apt/lists/* "$base.part"/var/log/*
    mv "$base.part" "$base"
fi

# ---- images ----

container=
discard() {
    [ -z "$container" ] || store rm "$container" >/dev/null 2>&1 || true
    rm -rf "$folder/storage" "$folder/run"
}
trap 'stop; discard' EXIT
trap 'stop; discard; exit 130' INT
trap 'stop; discard; exit 143' TERM HUP
say "building version $version"
container=$(store from scratch)
tree=$(store mount "$container")
cp -a "$base/." "$tree/"
tar -C "$tree/usr/local" --strip-components=1 --no-same-owner -xJf "$tarball"
# the loader finds the libraries for other programs, too
store run --isolation chroot "$container" -- sh -euc 'ldconfig
    groupadd --system --gid 980 kvcobra
    useradd --system --uid 980 --gid 980 --no-create-home kvcobra
    install -d -o kvcobra -g kvcobra -m 0755 /run/kvcobra' </dev/null
store umount "$container" >/dev/null

# image NAME OPTION...: an archive of the container with these settings
image() {
    archive=$folder/$1-$version.oci.tar
    store config --label "org.opencontainers.image.title=$1" --label "org.opencontainers.image.version=$version" "$container"
    name=$1
    shift
    store config "$@" "$container"
    rm -f "$archive"
    store commit --quiet --format oci --timestamp 0 "$container" "oci-archive:$archive:$name:$version" >/dev/null
    say "$archive, $(($(stat -c %s "$archive") / 1048576)) MiB"
}
image kvcobra-client --cmd '["kvcobra", "doctor"]'
# a number, so that the host and other containers can name the group of the socket
image kvcobrad --user 980:980 --volume /run/kvcobra --entrypoint '["kvcobrad"]' \
    --cmd '--socket /run/kvcobra/kvcobra.sock --operator-socket /run/kvcobra/operator.sock'
