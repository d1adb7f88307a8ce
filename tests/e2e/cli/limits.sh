#!/bin/sh
# Standard descriptors that are closed at the start, and limits that the kernel reports by a signal, in all programs: each
# says what is wrong, and nothing is written where it does not belong.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4 CLUSTER=$5 MOVER=$6
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
mkfifo "$dir/ready"
# start_daemon REDIRECTION OPTION...: a daemon that serves; REDIRECTION closes one of its descriptors
start_daemon() {
    redirection=$1
    shift
    eval '"$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M \
        --arena-bytes 8M --spare-extents 0 --state-dir "$dir/state" --ready-fd 3 "$@" 3>"$dir/ready"' "$redirection" '&'
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ]
}
stop_daemon() {
    kill -TERM "$daemon_pid"
    got=0
    wait "$daemon_pid" || got=$?
    daemon_pid=
    [ "$got" -eq 0 ]
}
closed() { # closed N COMMAND...
    fd=$1
    shift
    case $fd in
    0) "$@" <&- ;;
    1) "$@" >&- ;;
    2) "$@" 2>&- ;;
    all) "$@" <&- >&- 2>&- ;;
    esac
}

# ---- the daemon
for redirection in '<&-' '>&-' '2>&-' '<&- >&- 2>&-'; do
    start_daemon "$redirection" && ok "a daemon with $redirection serves" || not_ok "a daemon with $redirection serves"
    case $redirection in
    '2>&-') fd=2 ;;
    '>&-') fd=1 ;;
    *) fd=0 ;;
    esac
    [ "$(readlink "/proc/$daemon_pid/fd/$fd")" = /dev/null ] && ok "descriptor $fd is /dev/null" || not_ok "descriptor $fd is /dev/null"
    expect "a client is served" 0 "$KVCOBRA" ping
    stop_daemon && ok "it stops" || not_ok "it stops"
    [ ! -s "$dir/state/lock" ] && ok "nothing is in the lock file" || not_ok "the log is in the lock file"
done
for option in --version --help --print-config "--check-config $dir/empty.conf"; do
    : >"$dir/empty.conf"
    # shellcheck disable=SC2086
    expect "kvcobrad $option without an output" 1 closed 1 "$KVCOBRAD" $option
    grep -q "kvcobrad: cannot write to standard output" "$dir/err" && ok "it says so" || not_ok "it says so"
done

# ---- commands
start_daemon '2>"$dir/daemon.log"'
"$TINY_MODEL" "$dir/model.gguf"
cp "$ROOT/LICENSE" "$dir/text.txt"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/text.txt" --tokens 1024 --window 256 -o "$dir/m.stats" -q >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/m.table" >/dev/null
"$KVCOBRA" table stage "$dir/m.table" --quiet >/dev/null
"$KVCOBRA" table activate "$dir/m.table" --yes --quiet >/dev/null
for command in --help --version "status" "monitor --count 1 --last 1" "ping" "clients" "table list" "inspect $dir/m.table" \
    "generate $dir/model.gguf --prompt x --tokens 4 --share -q"; do
    # shellcheck disable=SC2086
    expect_sentence "$command without an output" "standard output" closed 1 "$KVCOBRA" $command
    # shellcheck disable=SC2086
    expect "$command without an input" 0 closed 0 "$KVCOBRA" $command
    # shellcheck disable=SC2086
    expect "$command without an error output" 0 closed 2 "$KVCOBRA" $command
done
stop_daemon
grep -q event=serving "$dir/daemon.log" && ! grep -q packet-refused "$dir/daemon.log" && ok "the daemon got no text" ||
    not_ok "the daemon got text as packets"

# ---- the limit of file sizes
limited() { # limited BLOCKS COMMAND...
    limit=$1
    shift
    (
        ulimit -f "$limit"
        exec "$@"
    )
}
cp "$dir/m.table" "$dir/kept.table"
mkdir "$dir/made"
expect_sentence "solve beyond the limit" "File too large" limited 1 "$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/made/m.table" -q
expect_sentence "the same over an existing file" "File too large" limited 1 "$KVCOBRA" solve "$dir/m.stats" --bpd 2 -o \
    "$dir/kept.table" -q
cmp -s "$dir/m.table" "$dir/kept.table" && ok "the file is unchanged" || not_ok "the file is changed"
[ -z "$(ls -A "$dir/made")" ] && ok "no partial file is left" || not_ok "a partial file is left"
expect "calibrate beyond the limit" 1 limited 1 "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/text.txt" --tokens 1024 \
    --window 256 -o "$dir/made/m.stats" -q
grep -q "^kvcobra: .*File too large" "$dir/err" && ok "it says so" || not_ok "it says so"
[ -z "$(ls -A "$dir/made")" ] && ok "no partial file is left" || not_ok "a partial file is left"
limited 1024 "$KVCOBRAD" --socket "$dir/x.sock" --pool-bytes 64M 2>"$dir/err" && got=0 || got=$?
[ "$got" -eq 78 ] && grep -q 'event=failed message="the limit of file sizes is' "$dir/err" && ok "kvcobrad beyond the limit says so" ||
    not_ok "kvcobrad beyond the limit: $got"
limited 0 "$KVCOBRA" --help 2>"$dir/err" >"$dir/help" && got=0 || got=$?
[ "$got" -eq 1 ] && ok "output beyond the limit" || not_ok "output beyond the limit: $got"

# ---- the limit of processor time
busy() {
    (
        ulimit -S -t 1
        exec "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 2000000 --window 256 -q -o "$dir/made/m.stats"
    )
}
for copy in $(seq 200); do
    cat "$ROOT/LICENSE"
done >"$dir/long.txt"
busy >/dev/null 2>"$dir/err" && got=0 || got=$?
[ "$got" -gt 128 ] && grep -q "kvcobra: the limit of processor time" "$dir/err" && ok "calibrate beyond the limit says so" ||
    not_ok "calibrate beyond the limit: $got"
[ -z "$(ls -A "$dir/made")" ] && ok "no partial file is left" || not_ok "a partial file is left"

# ---- the other programs
cat >"$dir/cluster.conf" <<CONF
servers = 127.0.0.1:1
socket = $dir/cluster.sock
CONF
for option in --version --help "--check-config $dir/cluster.conf"; do
    # shellcheck disable=SC2086
    expect "kvcobra-cluster $option without an output" 1 closed 1 "$CLUSTER" $option
    grep -q "kvcobra-cluster: cannot write to standard output" "$dir/err" && ok "it says so" || not_ok "it says so"
done
if [ -n "$MOVER" ]; then
    for option in --version --help; do
        expect "kvcobra-mover $option without an output" 1 closed 1 "$MOVER" "$option"
        grep -q "kvcobra-mover: cannot write to standard output" "$dir/err" && ok "it says so" || not_ok "it says so"
    done
    expect "kvcobra-mover with all descriptors closed" 2 closed all "$MOVER"
fi
finish
