#!/bin/sh
# Sockets, locks and folders that are removed or replaced while a daemon uses them: it says so, leaves what is another
# daemon's, and no two daemons write one state folder.
KVCOBRA=$1 KVCOBRAD=$2
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

mkfifo "$dir/ready"
# start NAME STATE OPTION...: serves at the sockets of this test; its log is $dir/NAME.log, its process in $pid
start() {
    name=$1 state=$2
    shift 2
    "$KVCOBRAD" --socket "$dir/c.sock" --operator-socket "$dir/o.sock" --metrics-socket "$dir/m.sock" --pool-bytes 64M \
        --arena-bytes 8M --spare-extents 0 --state-dir "$state" --ready-fd 3 "$@" 3>"$dir/ready" 2>"$dir/$name.log" &
    pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ]
}
stop() {
    kill -TERM "$1"
    wait "$1" || true
}
logged() { # logged NAME EVENT WORD
    grep "event=$2 " "$dir/$1.log" | grep -qF -- "$3"
}

start a "$dir/state-a" && ok "a daemon serves" || not_ok "a daemon serves"
a=$pid daemon_pid=$pid
expect "status" 0 "$KVCOBRA" status --socket "$dir/o.sock" --json
expect_true "no name is lost" 'j["lost_names"] == 0'

# ---- one name: it is noticed while the others serve
rm "$dir/c.sock"
wait_for "the loss of a socket" logged a name-lost "$dir/c.sock"
logged a name-lost "Restart it" && ok "the log says what to do" || not_ok "the log says what to do"
expect "status" 0 "$KVCOBRA" status --socket "$dir/o.sock" --json
expect_true "an operator sees it" 'j["lost_names"] == 1'
expect "status as text" 0 "$KVCOBRA" status --socket "$dir/o.sock"
grep -q "^names *1 of its sockets" "$dir/out" && ok "status says so" || not_ok "status says so"
"$KVCOBRA" doctor --operator-socket "$dir/o.sock" >"$dir/out" 2>&1 || true
grep -q "names .*were removed or replaced" "$dir/out" && ok "doctor says so" || not_ok "doctor says so"
[ "$(grep -c "event=name-lost " "$dir/a.log")" -eq 1 ] && ok "it is logged once" || not_ok "it is logged once"

# ---- a cleaner removes everything, and another daemon begins
rm -f "$dir"/*.sock "$dir"/*.lock
for name in c.sock.lock o.sock o.sock.lock m.sock m.sock.lock; do
    wait_for "the loss of $name" logged a name-lost "path=$dir/$name "
done
start b "$dir/state-b" && ok "another daemon serves there" || not_ok "another daemon serves there"
b=$pid
wait_for "the loss to another daemon" logged b serving "$dir/c.sock"
stop "$a"
daemon_pid=$b
for name in c.sock c.sock.lock o.sock o.sock.lock m.sock m.sock.lock; do
    [ -e "$dir/$name" ] && ok "$name stays" || not_ok "the first daemon removed $name of the second"
done
expect "the second daemon is found" 0 "$KVCOBRA" ping --socket "$dir/c.sock"

# ---- a socket without its lock is not taken over
rm "$dir/c.sock.lock"
"$KVCOBRAD" --socket "$dir/c.sock" --pool-bytes 64M 2>"$dir/err" && got=0 || got=$?
[ "$got" -eq 1 ] && grep -q "another process serves $dir/c.sock" "$dir/err" && ok "a socket that is served is not replaced" ||
    not_ok "a socket that is served is not replaced: $got"
expect "it still serves" 0 "$KVCOBRA" ping --socket "$dir/c.sock"

# ---- the state folder
rm "$dir/state-b/lock"
"$KVCOBRAD" --socket "$dir/d.sock" --pool-bytes 64M --state-dir "$dir/state-b" 2>"$dir/err" && got=0 || got=$?
[ "$got" -eq 1 ] && grep -q "another kvcobrad uses the state folder $dir/state-b" "$dir/err" &&
    ok "no second daemon gets a state folder whose lock file is gone" || not_ok "two daemons have one state folder: $got"
expect "a change is stored" 0 "$KVCOBRA" quota uid-1 --max 32M --socket "$dir/o.sock" --yes
mv "$dir/state-b" "$dir/moved"
mkdir -m 0700 "$dir/state-b"
wait_for "the loss of the state folder" logged b name-lost "$dir/state-b was replaced by another one"
expect "a change that cannot be stored" 1 "$KVCOBRA" quota uid-1 --max 48M --socket "$dir/o.sock" --yes
grep -q "$dir/state-b was replaced by another one" "$dir/err" && ok "it says why" || not_ok "it says why"
[ -z "$(ls -A "$dir/state-b")" ] && ok "nothing is written into the other folder" || not_ok "files in the other folder"
rmdir "$dir/state-b"
mv "$dir/moved" "$dir/state-b"
wait_for "the state folder" logged b name-found "$dir/state-b"
expect "changes are stored again" 0 "$KVCOBRA" quota uid-1 --max 48M --socket "$dir/o.sock" --yes
stop "$b"
daemon_pid=
finish
