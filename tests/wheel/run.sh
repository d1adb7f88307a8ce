#!/bin/sh
# The wheel of tools/wheel.sh in a bare Debian 11 and a bare Debian 12 that have python3-venv and nothing else, as a user who has
# just logged in by su. One line per check; the last line counts: N passed, N failed, N skipped.
#
#     sh tests/wheel/run.sh WHEEL TINY_MODEL [GGUF]     TINY_MODEL: of a folder that is built with -Dtests=enabled
#
# With a GGUF file of an instruct model, such as that of tools/fetch_model.sh, it also prints the seconds from the wheel to the first
# answer and to the first shared prompt.
# Needs root and debootstrap, and the network for Debian's packages (60 MB) and cffi. The systems stay in the user's cache.
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/cli/lib.sh
. "$here/../e2e/cli/lib.sh"
WHEEL=${1:?a wheel is needed} TINY_MODEL=${2:?the program tiny_model is needed}

# machines that it is not for: pip refuses it with a sentence, also without a network
for platform in musllinux_1_2_x86_64 manylinux_2_28_aarch64 manylinux_2_27_x86_64; do
    expect "the wheel on $platform" 1 python3 -m pip download --disable-pip-version-check --no-deps --no-index --only-binary :all: \
        --platform "$platform" --dest "$dir/none" "$WHEEL"
    grep -q "is not a supported wheel on this platform" "$dir/err" && ok "the sentence says why" || not_ok "the sentence says why"
done
mkdir "$dir/other"
printf '#!/bin/sh\necho Linux aarch64\n' >"$dir/other/uname"
chmod +x "$dir/other/uname"
expect "building the wheel on another processor" 77 env PATH="$dir/other:$PATH" sh "$here/../../tools/wheel.sh" "$dir/other/build"
grep -q "it runs on Linux x86-64, and this is Linux aarch64" "$dir/out" && ok "the sentence says why" || not_ok "the sentence says why"

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null || ! unshare --mount --pid --fork true 2>/dev/null; then
    skip "it takes root, debootstrap and the right to make namespaces: sh tools/setup.sh boot"
    finish
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra
mkdir -p "$cache" "$dir/files"
"$TINY_MODEL" "$dir/files/model.gguf"
cp "$WHEEL" "$here/session.sh" "$here/share.py" "$here/../../LICENSE" "$dir/files/"
[ -z "${3:-}" ] || cp "$3" "$dir/files/real.gguf"
tarball=$(find "$(dirname "$WHEEL")" -maxdepth 1 -name 'kvcobra-*-linux-x86_64.tar.xz')
if [ -n "$tarball" ]; then
    mkdir "$dir/files/tarball"
    expect "the tarball" 0 tar -C "$dir/files/tarball" -xJf "$tarball"
else
    skip "there is no tarball beside $WHEEL"
fi
sed -n 's/^    \(pip install kvcobra-.*\|kvcobra up .*\)$/\1/p' "$here/../../README.md" >"$dir/files/commands"
[ "$(wc -l <"$dir/files/commands")" -eq 2 ] && ok "the README has two lines" || not_ok "the README has two lines"

# the package alone, built by the pip that built the wheel: from a read-only checkout, and not without the headers
pip=$(dirname "$WHEEL")/python/bin/pip
if [ -x "$pip" ]; then
    build_in() {
        # shellcheck disable=SC2016
        unshare --mount sh -euc 'mount --bind -o ro "$1" "$1" && mount -o remount,bind,ro "$1"
            exec "$2" --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir "$3" "$1/$4"' \
            sh "$1" "$pip" "$dir/built" "$2"
    }
    expect "a wheel of a read-only checkout" 0 build_in "$(cd "$here/../.." && pwd)" client/python
    cp -R "$here/../../client/python" "$dir/alone"
    rm -f "$dir/alone/LICENSE" "$dir"/alone/kvcobra/_*declarations.py "$dir/alone/kvcobra/_openings.py"
    cp "$here/../../LICENSE" "$dir/alone/"
    expect "a wheel without the headers" 1 build_in "$dir/alone" .
    grep -q "build from a whole checkout" "$dir/err" && ok "the sentence says why" || not_ok "the sentence says why"
else
    skip "building the package: there is no $pip"
fi

# bare SUITE: the system, made once
bare() {
    system=$cache/wheel-$1
    [ ! -d "$system" ] || return 0
    rm -rf "$system.part"
    debootstrap --variant=minbase --include=python3-venv "$1" "$system.part" >"$dir/log" 2>&1 || {
        tail -n 5 "$dir/log" >&2
        return 1
    }
    mv "$system.part" "$system"
}

# run_in SUITE: session.sh in a copy of the system that is gone afterwards, as the user 1000, without a network
run_in() {
    rm -rf "$dir/upper" "$dir/work" "$dir/root"
    mkdir "$dir/upper" "$dir/work" "$dir/root"
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --net sh -euc '
        mount -t tmpfs tmpfs "$2"
        mkdir "$2/upper" "$2/work"
        mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$3"
        mount -t proc proc "$3/proc"
        mount --rbind /dev "$3/dev"
        chmod 1777 "$3/tmp"
        mkdir -p "$3/home/user"
        cp -R "$4" "$3/home/user/files"
        echo "user:x:1000:1000::/home/user:/bin/sh" >>"$3/etc/passwd"
        chown -R 1000:1000 "$3/home/user"
        exec chroot --userspec=1000:1000 "$3" /usr/bin/env -i HOME=/home/user PATH=/usr/bin:/bin sh /home/user/files/session.sh
    ' sh "$system" "$dir/work" "$dir/root" "$dir/files" </dev/null
}

for suite in bullseye bookworm; do
    bare "$suite" || {
        skip "debootstrap of $suite failed: the network is missing"
        continue
    }
    python=$(basename "$(find "$system/usr/bin" -name 'python3.*[0-9]' | head -n 1)")
    rm -f "$dir"/files/cffi* "$dir"/files/pycparser*
    python3 -m pip download --quiet --disable-pip-version-check --only-binary :all: --platform manylinux2014_x86_64 \
        --python-version "${python#python}" --dest "$dir/files" cffi >"$dir/log" 2>&1 || {
        skip "pip cannot download cffi for $python: the network is missing"
        continue
    }
    run_in >"$dir/lines" 2>"$dir/err" || not_ok "$suite: the session ended early"
    sed "s/^\(ok\|FAIL\) */&$suite: /" "$dir/lines"
    passed=$((passed + $(grep -c '^ok ' "$dir/lines" || true)))
    failed=$((failed + $(grep -c '^FAIL ' "$dir/lines" || true)))
    if grep -q '^FAIL ' "$dir/lines"; then cat "$dir/err"; fi
done
finish
