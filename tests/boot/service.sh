# Sourced by run.sh: what its checks do with the service in the container, and how they look at it.

unit=kvcobrad.service
unit_folder=/etc/systemd/system
conf=/etc/kvcobra/kvcobrad.conf

# A path of the container, as the host names it
at() {
    echo "$machine_folder/$machine_root$1"
}

# unit_shows PROPERTY: its value
unit_shows() {
    in_machine systemctl show --property "$1" --value "$unit"
}

unit_is_up() {
    [ "$(unit_shows ActiveState)/$(unit_shows SubState)" = active/running ]
}

# drop_in NAME LINE...: a drop-in of the service
drop_in() {
    mkdir -p "$(at $unit_folder/$unit.d)"
    file=$(at "$unit_folder/$unit.d/$1.conf")
    shift
    printf '%s\n' "[Service]" "$@" >"$file"
    in_machine systemctl daemon-reload
}

# configure LINE...: the whole configuration file
configure() {
    printf '%s\n' "$@" >"$(at "$conf")"
}

# The log since the last `mark`
mark() {
    log_from=$(in_machine journalctl --quiet --unit "$unit" --lines 0 --show-cursor | sed -n 's/^-- cursor: //p')
}

log() {
    in_machine journalctl --quiet --unit "$unit" --output cat ${log_from:+--after-cursor "$log_from"}
}

log_has() {
    log | grep -qF -- "$1"
}

# soon COMMAND...: COMMAND succeeds, now or within three minutes: systemd tells states and journald keeps lines a little later
soon() {
    wait_end=$(($(date +%s) + 180))
    until "$@"; do
        [ "$(date +%s)" -lt "$wait_end" ] || return 1
        sleep 0.1
    done
}

# expect_log NAME TEXT: the log has TEXT, now or soon
expect_log() {
    if soon log_has "$2"; then
        ok "$1"
        return
    fi
    log >"$dir/out"
    : >"$dir/err"
    shown=
    not_ok "$1: the log lacks \"$2\""
}

# has_failed STATUS: the service's last start ended with the exit status, and systemd does not start it again
has_failed() {
    [ "$(unit_shows SubState)/$(unit_shows ExecMainStatus)" = "failed/$1" ]
}

# check NAME COMMAND...: COMMAND succeeds; its output is shown if not
check() {
    name=$1
    shift
    expect "$name" 0 "$@"
}

# check_text NAME TEXT: the output of the last command, on either stream, has TEXT
check_text() {
    if cat "$dir/out" "$dir/err" | grep -qF -- "$2"; then
        ok "$1"
    else
        shown=
        not_ok "$1: no \"$2\""
    fi
}

# restart: restarts the service; the tests restart more often than the unit allows
restart() {
    in_machine systemctl reset-failed "$unit" kvcobrad.socket kvcobrad-operator.socket kvcobrad-metrics.socket
    in_machine systemctl restart "$unit"
}

# read_pages NAME [PROMPTS]: reads prompts, 2 by default, into $dir/NAME, and the number of tokens into $dir/NAME.found
read_pages() {
    as_user alice pages read "$model" "${2:-2}" >"$dir/$1" 2>"$dir/$1.found"
}

# found NAME TOKENS: whether read_pages NAME found them. A match leaves one token, so whole pages: 960 of 1024.
found() {
    grep -qx "found $2 tokens" "$dir/$1.found"
}

# expect_same NAME: all pages are there, byte for byte
expect_same() {
    check "$1: read" read_pages after
    check "$1: all tokens are found" found after 1920
    check "$1: every byte is the same" cmp "$dir/before" "$dir/after"
}

# kill_daemon SIGNAL: sends it and waits for the next process
kill_daemon() {
    starts=$(unit_shows NRestarts)
    in_machine systemctl kill --kill-who=main --signal="$1" "$unit"
    wait_for "the next start" started_again
}

started_again() {
    [ "$(unit_shows NRestarts)" -gt "$starts" ] && unit_is_up
}
