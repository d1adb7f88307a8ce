#!/bin/sh
# A daemon that is stopped (SIGSTOP) answers nothing: every command that talks to one has --timeout, and ends after it with a
# sentence that names the socket.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"
trap 'kill -CONT "$daemon_pid" 2>/dev/null || true; cleanup' EXIT # a stopped process does not end on SIGTERM

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
    --spare-extents 0 --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
"$TINY_MODEL" "$dir/model.gguf"
seq 1 64 >"$dir/tokens.txt"
expect "a timeout is not too short for a daemon that runs" 0 "$KVCOBRA" status --timeout 60
for seconds in 0 0.09 3601 x; do
    expect "--timeout $seconds" 2 "$KVCOBRA" ping --timeout "$seconds"
done
expect "--timeout without a daemon" 2 "$KVCOBRA" generate "$dir/model.gguf" --prompt x --timeout 3

# commands that are connected, one after the other, until the daemon stops
pings() {
    while "$KVCOBRA" ping --count 100000 --timeout 0.5; do :; done
}
pings >"$dir/out" 2>"$dir/err" &
pings_pid=$!
wait_for "a command that was answered" test -s "$dir/out"
kill -STOP "$daemon_pid"
wait "$pings_pid" || true # its status is that of the last round of the loop
grep -qF "kvcobrad at $KVCOBRA_SOCKET did not answer within 0.5 s: it is busy, or its process is stopped" "$dir/err" &&
    ok "a connected command ends" || not_ok "a connected command ends"

# the arguments of a command that talks to a daemon; nothing: this test does not know the command
arguments_of() {
    case $1 in
    clients | doctor | evict | monitor | ping | status | top) echo --timeout ;;
    drain) echo --off --timeout ;;
    flush | lookup | unpin) echo "--tenant x --table 000000 --tokens-file $dir/tokens.txt --timeout" ;;
    pin) echo "--tenant x --table 000000 --tokens-file $dir/tokens.txt --for 1s --timeout" ;;
    export) echo "--table 000000 --tokens-file $dir/tokens.txt -o $dir/x.pages --timeout" ;;
    import) echo "$dir/tokens.txt --timeout" ;;
    generate) echo "$dir/model.gguf --prompt x --share --timeout" ;;
    model | table) echo list --timeout ;;
    quota) echo uid-1 --timeout ;;
    recalibrate) echo "-o $dir/new.table --timeout" ;;
    tier) echo status --timeout ;;
    esac
}
n=0
for command in $("$KVCOBRA" --help | sed -n '/^Commands:$/,/^$/s/^  \([a-z-]*\) .*/\1/p'); do
    "$KVCOBRA" "$command" --help >"$dir/help"
    grep -qE -- '--(operator-)?socket=' "$dir/help" || continue # its daemon is its own, or it has none
    grep -q -- '--timeout=SECONDS' "$dir/help" && ok "$command has --timeout" || not_ok "$command has --timeout"
    arguments=$(arguments_of "$command")
    [ -n "$arguments" ] || not_ok "$command: this test does not know its arguments"
    n=$((n + 1))
    if [ "$command" = doctor ]; then
        # shellcheck disable=SC2086
        expect "$command ends" 1 timeout 60 "$KVCOBRA" $command $arguments 0.2
        for socket in "$KVCOBRA_SOCKET" "$KVCOBRA_OPERATOR_SOCKET"; do
            grep -q "^wrong .* $socket did not answer within 0.2 s" "$dir/out" && ok "$command names $socket" || not_ok "$command names $socket"
        done
        continue
    fi
    # shellcheck disable=SC2086
    expect_sentence "$command ends" ".sock did not answer within 0.2 s" timeout 60 "$KVCOBRA" $command $arguments 0.2
    grep -q "'kill -CONT PID' continues it.*--timeout waits longer" "$dir/err" && ok "$command says what to do" || not_ok "$command says what to do"
done
[ "$n" -ge 12 ] && ok "$n commands" || not_ok "$n commands"
[ ! -e "$dir/new.table" ] && ok "no file is written" || not_ok "no file is written"

kill -CONT "$daemon_pid"
expect "the daemon goes on" 0 "$KVCOBRA" ping --timeout 60
finish
