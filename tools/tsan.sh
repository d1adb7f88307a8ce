#!/bin/sh
# Searches for races between threads: builds KV-COBRA with ThreadSanitizer in build-tsan, and runs the tests in which the
# threads of solving, of the daemon (work, extent_maker, reload, notify, closer, metrics, disk) and of the library run. Any
# user can run it, from any directory and any number of times. Exit status 0 if no race was found and no test failed.
#
#   sh tools/tsan.sh            the tests listed below
#   sh tools/tsan.sh TEST...    these tests of `meson test -C build-tsan --list`
#
# Reports are printed, and stay in build-tsan/races/.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build="build-tsan"
races=$root/$build/races

die() {
    echo "tsan: $*" >&2
    exit 1
}

# shellcheck source=tools/run_child.sh
. "$root/tools/run_child.sh"

tests() {
    cat <<'LIST'
threads fd_io alloc_table alloc_solve alloc_solve_unseen index
daemon-closer daemon-disk daemon-disk_damage daemon-disk_states daemon-metrics_http daemon-notify daemon-supervisor daemon-work
append_batch batch encode workers
arenas-threads commit-threads descriptors-threads drain-threads errors-threads pages-threads protocol-threads
raw_vectors-threads sessions-threads shares-threads store_limits-threads tables-threads
reload restart-threads slow_memory stress-threads tenants
client_fetch client_fetch_restart client_relay client_restart client_share client_swap
LIST
}

run sh tools/setup.sh build test
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
    run meson setup "$build" -Db_sanitize=thread -Dtests=enabled -Dcuda=disabled >"$build/setup.log" 2>&1 || {
        cat "$build/setup.log" >&2
        die "meson could not set up $build"
    }
fi
rm -rf "$races"
mkdir "$races"

# a process that is killed has written its reports before; exit status 66 is that of a process with a race
export TSAN_OPTIONS="log_path=$races/race:exitcode=66:second_deadlock_stack=1"
status=0
# libtsan of GCC 12 does not start where a newer kernel randomises more bits of addresses
fixed=
! setarch -R true 2>/dev/null || fixed="setarch -R"
# meson builds what the tests need
# shellcheck disable=SC2046,SC2048,SC2086 # lists of words
run $fixed meson test -C "$build" --quiet --print-errorlogs --timeout-multiplier 20 ${*:-$(tests)} || status=1
for report in "$races"/*; do
    [ -f "$report" ] || continue
    cat "$report"
    status=1
done
[ "$status" -eq 0 ] || die "races or failures: see above, $races and $build/meson-logs/testlog.txt"
