#!/bin/sh
# ping, clients, monitor and doctor against a real daemon, and without one.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
uid=$(id -u)
expect_sentence "ping without a daemon" "no kvcobrad serves $dir/kvcobra.sock" "$KVCOBRA" ping
expect "doctor without a daemon" 1 "$KVCOBRA" doctor --json
expect_true "both sockets are wrong" \
    "[x['subject'] for x in j if x['result'] == 'wrong'] == ['client socket', 'operator socket']"

"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
start() {
    mkfifo "$dir/ready"
    "$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
        --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
    rm "$dir/ready"
}
start

# ping
expect "ping" 0 "$KVCOBRA" ping --json
expect_true "it measures" "j['count'] == 10 and 0 < j['answer_s']['min'] <= j['answer_s']['median'] <= j['answer_s']['max']"
expect "ping of the operator socket" 0 "$KVCOBRA" ping --operator --count 3
grep -q "answers at $KVCOBRA_OPERATOR_SOCKET" "$dir/out" && ok "it names the socket" || not_ok "it names the socket"
expect "ping of nothing" 2 "$KVCOBRA" ping --count 0

# clients
expect "no clients" 0 "$KVCOBRA" clients
grep -qx "the daemon has no clients" "$dir/out" && ok "it says so" || not_ok "it says so"
"$KVCOBRA" table stage "$dir/3.table" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" >/dev/null
# a client that is stopped at its first token: it has read and published its prompt, and holds the pages
mkfifo "$dir/generated"
"$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 2500 --ignore-eos \
    >"$dir/generated" 2>"$dir/generate.err" &
client_pid=$!
python3 -c 'import os, signal, sys
with open(sys.argv[1], "rb", buffering=0) as f:
    f.read(1)
    os.kill(int(sys.argv[2]), signal.SIGSTOP)' "$dir/generated" "$client_pid"
holds() {
    "$KVCOBRA" clients --json >"$dir/out" && python3 -c 'import json, sys
j = json.load(open(sys.argv[1]))
sys.exit(not (len(j) == 1 and j[0]["held_pages"] > 0))' "$dir/out"
}
wait_for "the client's pages" holds
expect_true "the client is listed" "j[0]['pid'] == $client_pid and j[0]['uid'] == $uid and j[0]['tenant'] == 'uid-$uid'"
expect_true "it is connected" "j[0]['connected'] and j[0]['program'] == 'kvcobra' and j[0]['client_name'].startswith('libkvcobra')"
expect_true "it holds pages and has an arena" "j[0]['leases'] > 0 and j[0]['models'] == 1 and j[0]['arena_bytes'] == 8 << 20"
session=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["session"])' "$dir/out")
expect "clients as text" 0 "$KVCOBRA" clients --tenant "$(id -un)"
grep -q " $client_pid  kvcobra  uid-$uid ($(id -un)) " "$dir/out" && ok "with the user's name" || not_ok "with the user's name"
expect "clients of another tenant" 0 "$KVCOBRA" clients --tenant uid-4242 --json
expect_true "are none" "j == []"
expect_sentence "an unknown session" "there is no session 99999" "$KVCOBRA" clients disconnect 99999 --yes
expect "no answer" 1 "$KVCOBRA" clients disconnect "$session"
grep -q "nothing was changed" "$dir/err" && ok "changes nothing" || not_ok "changes nothing"
expect "disconnect" 0 "$KVCOBRA" clients disconnect "$session" --yes
grep -qx "disconnected session $session, process $client_pid" "$dir/out" && ok "it says whom" || not_ok "it says whom"
kill -KILL "$client_pid" 2>/dev/null || true
wait "$client_pid" 2>/dev/null || true

# monitor: what happened above, though the daemon printed warnings only
expect "the last events" 0 "$KVCOBRA" monitor --last 500 --event session-disconnected --count 1 --json
expect_true "have their fields" "j['session'] == $session and j['pid'] == $client_pid and j['level'] == 5 and 'time' in j"
expect "an event by its tenant" 0 "$KVCOBRA" monitor --last 500 --tenant "uid-$uid" --event session-open --count 1
grep -q "info    session-open  session=.* tenant=uid-$uid" "$dir/out" && ok "as text" || not_ok "as text"
"$KVCOBRA" monitor --event quota --count 2 --json >"$dir/events" 2>"$dir/monitor.err" &
monitor_pid=$!
connected() {
    "$KVCOBRA" quota uid-4242 --max 32M --yes >/dev/null 2>&1
    [ "$(wc -l <"$dir/events")" -ge 2 ]
}
wait_for "events as they happen" connected
wait "$monitor_pid" && ok "monitor ends after its count" || not_ok "monitor ends after its count"
grep -q '"tenant": "uid-4242"' "$dir/events" && ok "they are those of quotas" || not_ok "they are those of quotas"

# a restart: the numbers begin anew, and monitor goes on
"$KVCOBRA" monitor --event drain --json >"$dir/events" 2>"$dir/monitor.err" &
monitor_pid=$!
more_than() {
    "$KVCOBRA" drain --yes >/dev/null 2>&1 && "$KVCOBRA" drain --off >/dev/null 2>&1 && [ "$(wc -l <"$dir/events")" -gt "$1" ]
}
wait_for "an event before the restart" more_than 0
kill -TERM "$daemon_pid"
wait "$daemon_pid" 2>/dev/null || true
n_before=$(wc -l <"$dir/events")
start
wait_for "an event after the restart" more_than "$n_before"
kill -TERM "$monitor_pid"
wait "$monitor_pid" 2>/dev/null || true
grep -q "the daemon is gone; waiting" "$dir/monitor.err" && ok "monitor says that it waits" || not_ok "monitor says that it waits"

# doctor
expect "doctor" 0 "$KVCOBRA" doctor --json
expect_true "nothing is wrong" "all(x['result'] != 'wrong' for x in j)"
expect_true "all subjects" "{'version', 'kernels', 'memory', 'clock', 'systemd', 'client socket', 'operator socket', 'daemon',
 'restart', 'pool', 'descriptors', 'tables'} <= {x['subject'] for x in j}"
expect_true "no table is active" "[x['result'] for x in j if x['subject'] == 'tables'] == ['note']"
printf 'pool-bytes = 64M\nnonsense = 1\nlog-level = loud\n' >"$dir/bad.conf"
expect "doctor with a wrong configuration" 1 "$KVCOBRA" doctor --config "$dir/bad.conf" --json
expect_true "prints the lines" "['bad.conf, line %d: ' % n in x['text'] for n, x in enumerate((x for x in j if x['subject'] ==
 'configuration'), 2)] == [True, True]"
expect_true "and nothing else is wrong" "sum(x['result'] == 'wrong' for x in j) == 2"
expect "with a wrong configuration and no daemon" 1 env KVCOBRA_SOCKET="$dir/no.sock" KVCOBRA_OPERATOR_SOCKET="$dir/no.sock" \
    "$KVCOBRA" doctor --config "$dir/bad.conf" --json
expect_true "starting it is not the advice" "['mend its configuration first' in x['text'] for x in j if 'socket' in x['subject']] == [True, True]"
printf 'pool-bytes = 64M\n' >"$dir/good.conf"
expect "doctor with a right one" 0 "$KVCOBRA" doctor --config "$dir/good.conf" --json
expect_true "says so" "[x['result'] for x in j if x['subject'] == 'configuration'][-1] == 'ok'"
expect "doctor without one" 1 "$KVCOBRA" doctor --config "$dir/none.conf"
if [ "$(id -u)" -eq 0 ]; then
    # a member of the clients' group who is no operator: reaches the first socket, and not the second
    chmod 755 "$dir"
    chmod 666 "$KVCOBRA_SOCKET"
    chmod 600 "$KVCOBRA_OPERATOR_SOCKET"
    as_nobody() {
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    }
    expect "doctor for a client" 0 as_nobody "$KVCOBRA" doctor --json
    expect_true "has a note about operators" "[x['result'] for x in j if x['subject'] == 'operator socket'] == ['note']"
    expect_true "and no fault" "all(x['result'] != 'wrong' for x in j)"
fi
expect "doctor as text" 0 "$KVCOBRA" doctor
grep -q "^ok    daemon          version" "$dir/out" && ok "lines" || not_ok "lines"
finish
