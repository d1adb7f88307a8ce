#!/bin/sh
# From a fresh Debian 12 to the demonstration: installs the packages that are missing, builds, fetches a small language
# model, and runs `kvcobra demo`. Any user can run it from any directory, any number of times.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() {
    echo "quickstart: $*"
}

die() {
    echo "quickstart: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

folder=build-release
run sh tools/setup.sh build model demo

say "building in $folder"
mkdir -p "$folder"
if [ -f "$folder/build.ninja" ]; then
    again=--reconfigure
else
    again=
fi
# shellcheck disable=SC2086
run meson setup $again --buildtype=release -Dtests=disabled "$folder" >"$folder/setup.log" 2>&1 || {
    cat "$folder/setup.log" >&2
    die "meson could not set up $folder"
}
run ninja -C "$folder" --quiet || die "the build failed"

say "fetching the model, 94 MB, unless it is cached"
run sh tools/fetch_model.sh >"$folder/model.path" || die "cannot fetch the model"
model=$(tail -n 1 "$folder/model.path")

say "running the demonstration"
run "$folder/tools/kvcobra" demo "$model"
say "done; the command is $root/$folder/tools/kvcobra, 'kvcobra --help' describes it"
