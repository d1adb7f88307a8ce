# A daemon that finds the journal of another version: it keeps the pages, or says that they are lost.

# A journal of a version that no daemon writes, as a newer daemon would leave it: process 1 of the container has the memory
check "upgrade: a restart before" restart
check "upgrade: prompts are published" as_user alice pages publish "$model" 2
journal=$(find "/proc/$machine_init/fd" -lname '*memfd:kvcobra-journal*' | head -n 1)
check "upgrade: systemd has the journal" test -n "$journal"
printf '\143\000\000\000' | dd of="$journal" bs=4 seek=1 conv=notrunc status=none # version 99, behind the magic number
mark
check "upgrade: a restart with an unknown journal" restart
expect_log "upgrade: the log has the version" "the stored journal is of another version (99,"
expect_log "upgrade: the log says that the pool is lost" "event=pool-lost"
check "upgrade: it starts empty" read_pages after
check "upgrade: nothing is found" found after 0
check "upgrade: it serves" as_user alice pages publish "$model" 2
mark
check "upgrade: the next restart" restart
expect "upgrade: it finds its own journal" 1 log_has pool-lost

# The daemon of the last earlier version of the journal, built from the history
changed=$(git -C "$ROOT" log -1 --format=%H -G'^#define JOURNAL_VERSION [0-9]' -- '*journal.h' 2>/dev/null || true)
old=$([ -z "$changed" ] || git -C "$ROOT" rev-parse --verify --quiet "$changed^" || true)
previous=$cache/kvcobrad-$old

build_previous() {
    [ ! -x "$previous" ] || return 0
    mkdir "$machine_folder/previous" &&
        git -C "$ROOT" archive "$old" | tar -C "$machine_folder/previous" -x &&
        run meson setup -Dtests=disabled -Dcuda=disabled "$machine_folder/previous/build" "$machine_folder/previous" &&
        run ninja -C "$machine_folder/previous/build" daemon/kvcobrad &&
        rm -f "$cache"/kvcobrad-* && cp "$machine_folder/previous/build/daemon/kvcobrad" "$previous.$$" &&
        mv "$previous.$$" "$previous"
}

if [ -z "$old" ]; then
    skip "upgrade: the history has no daemon with an earlier journal"
else
    say "building the daemon of the earlier journal, $(git -C "$ROOT" log -1 --format=%h "$old")"
    check "upgrade: the earlier daemon builds" build_previous
    cp "$previous" "$(at /usr/local/bin/kvcobrad-earlier)"
    # it reads tables of format 2, which have no trellis
    check "upgrade: solve" in_machine kvcobra solve $machine_home/model.stats --bpd 3 --trellis 0 -o $machine_home/scalar.table
    check "upgrade: stage a table" in_machine kvcobra table stage $machine_home/scalar.table
    check "upgrade: activate it" in_machine kvcobra table activate $machine_home/scalar.table
    check "upgrade: stop" in_machine systemctl stop "$unit"
    drop_in earlier "ExecStart=" "ExecStart=/usr/local/bin/kvcobrad-earlier --config $conf --state-dir %S/kvcobra --keep-pool yes"
    check "upgrade: the earlier daemon starts" restart
    check "upgrade: it takes pages" as_user alice pages publish "$model" 2
    check "upgrade: read" read_pages before
    check "upgrade: all tokens are found" found before 1920
    mark
    rm "$(at $unit_folder/$unit.d/earlier.conf)"
    in_machine systemctl daemon-reload
    check "upgrade: the present daemon starts" restart
    check "upgrade: it reads" read_pages after
    if log_has pool-lost; then
        check "upgrade: the pool is lost, the log says so, and nothing is found" found after 0
        check "upgrade: NEWS.md says that the pool is lost" grep -qi "pool is lost" "$ROOT/NEWS.md"
    else
        check "upgrade: the pages are kept" found after 1920
        check "upgrade: every byte is the same" cmp "$dir/before" "$dir/after"
    fi
fi
