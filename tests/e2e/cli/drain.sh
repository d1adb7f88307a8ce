#!/bin/sh
# kvcobra drain against a real daemon: the errors of clients, the values of status, waiting, the end of draining.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

operator=$dir/operator.sock
mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$dir/kvcobra.sock" --operator-socket "$operator" --pool-bytes 64M --arena-bytes 8M \
    --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
model=$dir/model.gguf
"$TINY_MODEL" "$model"
"$KVCOBRA" calibrate "$model" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
"$KVCOBRA" table stage "$dir/3.table" --socket "$operator" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" --socket "$operator" >/dev/null

"$KVCOBRA" drain --socket "$operator" </dev/null >"$dir/out" 2>"$dir/err" && not_ok "without a yes" || ok "without a yes"
expect "nothing happened" 0 "$KVCOBRA" status --socket "$operator" --json
expect_true "nothing happened" "not j['draining']"
expect "drain and wait" 0 "$KVCOBRA" drain --yes --wait --socket "$operator" --json
expect_true "it is idle" "j['draining'] and j['idle'] and j['held_pages'] == 0"
expect "status" 0 "$KVCOBRA" status --socket "$operator"
grep -q "^draining" "$dir/out" && ok "status has it" || not_ok "status has it"
expect_sentence "a new client" "draining" "$KVCOBRA" generate "$model" --prompt x --tokens 4 --socket "$dir/kvcobra.sock"
expect "again" 0 "$KVCOBRA" drain --yes --socket "$operator"
grep -q "can be stopped" "$dir/out" && ok "says that it can be stopped" || not_ok "says that it can be stopped"
expect "off" 0 "$KVCOBRA" drain --off --socket "$operator"
expect "a new client works" 0 "$KVCOBRA" generate "$model" --prompt x --tokens 4 --ignore-eos --socket "$dir/kvcobra.sock"
expect "off and wait" 2 "$KVCOBRA" drain --off --wait --socket "$operator"
expect "a limit without waiting" 2 "$KVCOBRA" drain --within 3 --socket "$operator"
expect_sentence "on the clients' socket" "drain" "$KVCOBRA" drain --off --socket "$dir/kvcobra.sock"
finish
