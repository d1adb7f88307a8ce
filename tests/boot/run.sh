#!/bin/sh
# The service under a real init: boots a bare Debian 12 in a container, installs this project in it as systemd/README.md says,
# and checks what users and administrators rely on. One line per check; the last line counts: N passed, N failed, N skipped.
#
#     sh tests/boot/run.sh            builds in build-boot
#     sh tests/boot/run.sh FOLDER     uses a folder that is built with -Dtests=enabled
#     sh tests/boot/run.sh FOLDER restart metrics    only these parts: the names of check_*.sh, after install and access
#
# Needs root, systemd-nspawn and debootstrap; without them the exit status is 77 and a sentence says what is missing.
# The first run downloads about 100 MB of Debian packages to the user's cache. Ctrl-C leaves nothing behind.
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)

say() {
    echo "boot: $*"
}

# shellcheck source=tools/run_child.sh
. "$ROOT/tools/run_child.sh"
# shellcheck source=tests/e2e/cli/lib.sh
. "$ROOT/tests/e2e/cli/lib.sh"
# shellcheck source=tests/boot/machine.sh
. "$here/machine.sh"
# shellcheck source=tests/boot/service.sh
. "$here/service.sh"

end() {
    stop
    trap '' INT TERM HUP
    machine_end
    cleanup
}
trap end EXIT

# die_with_log SENTENCE FILE
die_with_log() {
    tail -n 20 "$2" >&2
    not_ok "$1"
    finish
}

# ---- what it needs ----

if [ "$(id -u)" -ne 0 ]; then
    skip "only root can boot a container"
    finish
fi
for tool in systemd-nspawn debootstrap; do
    command -v "$tool" >/dev/null && continue
    skip "there is no $tool: sh tools/setup.sh boot installs it"
    finish
done
if ! unshare --mount --pid --fork true 2>/dev/null; then
    skip "this root may not make namespaces, so no container"
    finish
fi
if [ -z "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
    skip "neither XDG_CACHE_HOME nor HOME is set, so there is no folder for the bare system"
    finish
fi

# ---- build ----

BUILD=$ROOT/build-boot
if [ $# -gt 0 ]; then
    BUILD=$1
    shift
else
    say "building in build-boot"
    [ -f "$BUILD/build.ninja" ] || run meson setup -Dtests=enabled "$BUILD" "$ROOT" >"$dir/setup.log" 2>&1 ||
        die_with_log "meson could not set up $BUILD" "$dir/setup.log"
    run ninja -C "$BUILD" --quiet || die_with_log "the build in $BUILD failed" /dev/null
fi
BUILD=$(cd "$BUILD" && pwd)

# ---- checks ----

machine_prepare || {
    skip "debootstrap could not install Debian 12: $(tail -n 1 "$machine_folder/debootstrap.log")"
    finish
}
[ $# -gt 0 ] || set -- restart operators reload watchdog metrics cluster store upgrade quickstart packages
for part in install access "$@"; do
    [ -f "$here/check_$part.sh" ] || die_with_log "there is no part $part" /dev/null
done
machine_lay_out service
say "booting"
machine_boot service --private-network
for part in install access "$@"; do
    say "$part"
    # shellcheck source=/dev/null
    . "$here/check_$part.sh"
done

finish
