#!/bin/sh
# kvcobra model against a real daemon: alias, list, unalias, refusals, a restart, and clients of both digests.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

operator=$dir/operator.sock
mkfifo "$dir/ready"
start_daemon() {
    "$KVCOBRAD" --socket "$dir/kvcobra.sock" --operator-socket "$operator" --pool-bytes 64M --arena-bytes 8M \
        --state-dir "$dir/state" --log-level 5 --ready-fd 3 3>"$dir/ready" 2>>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
}
model() {
    "$KVCOBRA" model "$@" --socket "$operator"
}
start_daemon
gguf=$dir/model.gguf
"$TINY_MODEL" "$gguf"
expect "list of nothing" 0 model list
"$KVCOBRA" calibrate "$gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
"$KVCOBRA" table stage "$dir/3.table" --socket "$operator" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" --socket "$operator" >/dev/null

expect "list as JSON" 0 model list --json
expect_true "one model with its table" "len(j) == 1 and j[0]['tables'] == 1 and len(j[0]['active']) == 64"
expect_true "its name" "j[0]['name']"
expect_true "no aliases" "j[0]['aliases'] == []"
digest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["digest"])' "$dir/out")
alias=$(printf '%064x' 77)
other=$(printf '%064x' 78)

model alias "$alias" "$digest" </dev/null >"$dir/out" 2>"$dir/err" && not_ok "without a yes" || ok "without a yes"
expect "an alias, the model by six digits" 0 model alias "$alias" "$(echo "$digest" | cut -c 1-6)" --yes --json
expect_true "both digests" "j['alias'] == '$alias' and j['model'] == '$digest' and not j['already']"
expect "again" 0 model alias "$alias" "$digest" --yes --json
expect_true "nothing changed" "j['already']"
expect_sentence_after_question() { # the question of --yes is the first line on stderr
    name=$1 word=$2
    shift 2
    got=0
    shown=
    "$@" --yes >"$dir/out" 2>"$dir/err" || got=$?
    if [ "$got" -eq 1 ] && tail -n 1 "$dir/err" | grep '^kvcobra: ' | grep -qF -- "$word"; then
        ok "$name"
    else
        not_ok "$name"
    fi
}
expect_sentence_after_question "of itself" "itself" model alias "$other" "$other"
expect_sentence_after_question "a chain" "itself an alias" model alias "$other" "$alias"
expect_sentence_after_question "a model with tables" "tables of its own" model alias "$digest" "$other"
expect_sentence_after_question "two models" "unalias" model alias "$alias" "$other"
expect_sentence "an unknown model by six digits" "all 64 digits" model alias "$other" 123456 --yes
expect_sentence "an unknown alias" "$other" model unalias "$other" --yes
expect_sentence_after_question "on the clients' socket" "alias_model" "$KVCOBRA" model alias "$other" "$digest" \
    --socket "$dir/kvcobra.sock"
expect "list" 0 model list
grep -q "alias of" "$dir/out" && ok "list names the alias" || not_ok "list names the alias"
grep -q "alias=$alias model=$digest" "$dir/daemon.log" &&
    ok "the log names it" || not_ok "the log names it"

kill -TERM "$daemon_pid"
wait "$daemon_pid" || not_ok "the daemon ends"
start_daemon
expect "list after a restart" 0 model list --json
expect_true "the alias is there" "j[0]['aliases'] == ['$alias']"
expect "unalias by eight digits" 0 model unalias "$(echo "$alias" | cut -c 1-8)" --yes --json
expect_true "its model" "j['unaliased'] == '$alias' and j['model'] == '$digest'"
expect "list" 0 model list --json
expect_true "no alias is left" "j[0]['aliases'] == []"

expect "without an action" 2 model
expect "an unknown action" 2 model rename
expect "an alias of five digits" 2 model alias 12345 "$digest"
expect "an alias by its first digits" 2 model alias 123456 "$digest"
expect "one digest for an alias" 2 model alias "$alias"
expect "three digests" 2 model alias "$alias" "$digest" "$other"
expect "list of something" 2 model list "$digest"
finish
