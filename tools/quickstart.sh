#!/bin/sh
# From a fresh Debian 12 to the demonstration: installs missing packages, builds, downloads a small language model, and
# runs `kvcobra demo`. Any user can run it, from any directory and any number of times.
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

say "downloading the model, 94 MB, if it is not in the cache"
run sh tools/fetch_model.sh >"$folder/model.path" || die "the demonstration needs the model, which could not be downloaded"
model=$(tail -n 1 "$folder/model.path")

say "running the demonstration"
run "$folder/tools/kvcobra" demo "$model"
say "done. The command is $root/$folder/tools/kvcobra; 'kvcobra --help' lists its subcommands"
