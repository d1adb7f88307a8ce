#!/bin/sh
# table, status and generate against a real daemon: stage, activate, share a prompt between two runs, swap.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

model=$dir/model.gguf
socket=$dir/kvcobra.sock
operator=$dir/operator.sock
"$TINY_MODEL" "$model"
"$KVCOBRA" calibrate "$model" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
for budget in 2 3; do
    "$KVCOBRA" solve "$dir/m.stats" --bpd $budget -o "$dir/$budget.table" >/dev/null
done
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
head -c 1000 "$dir/3.table" >"$dir/broken.table"

mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$socket" --operator-socket "$operator" --pool-bytes 64M --quota-bytes 64M --arena-bytes 8M \
    --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"

expect "no tables yet" 0 "$KVCOBRA" table list --socket "$operator"
expect "no tables as JSON" 0 "$KVCOBRA" table list --socket "$operator" --json
expect_true "an empty list" "j == []"
expect_sentence "no active table" "table" "$KVCOBRA" generate "$model" --prompt x --socket "$socket"
expect_sentence "activating an unknown digest" "abcdef" "$KVCOBRA" table activate abcdef --socket "$operator"
expect_sentence "staging a damaged table" "$dir/broken.table" "$KVCOBRA" table stage "$dir/broken.table" \
    --socket "$operator"
expect_sentence "staging on the clients' socket" "$dir/3.table" "$KVCOBRA" table stage "$dir/3.table" \
    --socket "$socket"

expect "stage" 0 "$KVCOBRA" table stage "$dir/3.table" --socket "$operator"
expect "stage again" 0 "$KVCOBRA" table stage "$dir/3.table" --socket "$operator" --json
expect_true "it was staged already" "j['already'] and len(j['digest']) == 64"
digest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["digest"])' "$dir/out")
expect "activate by the first digits" 0 "$KVCOBRA" table activate "$(echo "$digest" | cut -c 1-8)" --socket "$operator"
expect "activate by file, again" 0 "$KVCOBRA" table activate "$dir/3.table" --socket "$operator" --json
expect_true "it was active already" "j['already'] and j['digest'] == '$digest'"
expect "list" 0 "$KVCOBRA" table list --socket "$operator" --json
expect_true "the table is active" "[t['digest'] for t in j if t['state'] == 'active'] == ['$digest']"
expect "list as text" 0 "$KVCOBRA" table list --socket "$operator"
grep -q active "$dir/out" && ok "the text has the state" || not_ok "the text has the state"

generate() {
    "$KVCOBRA" generate "$model" --prompt-file "$dir/prompt.txt" --socket "$socket" --tokens 8 --ignore-eos --json "$@"
}
expect "first reader" 0 generate
# 1500 tokens, of which at least the newest 64 stay private: at most 22 chunks can be published
expect_true "finds nothing, publishes" "j['matched_tokens'] == 0 and j['published_tokens'] == 22 * 64"
expect_true "no error is reported" "j['not_published_because'] == '' and j['generated_tokens'] == 8"
expect "second reader" 0 generate
expect_true "finds what the first one published" "j['matched_tokens'] == 22 * 64"
expect_true "shares its bytes" "j['shared_bytes'] > 0"
expect_true "generates as many tokens" "j['generated_tokens'] == 8"

expect "status as text" 0 "$KVCOBRA" status --socket "$operator"
grep -q "tokens that still fit" "$dir/out" && ok "the text has the room in tokens" || not_ok "the text has the room in tokens"
expect "status as JSON" 0 "$KVCOBRA" status --socket "$operator" --json
expect_json "status --json" pid pool_bytes waste_bytes tenants spaces
expect_true "the pages are listed" "sum(t['pages'] for t in j['tenants']) == 22"
expect_true "spaces have room" "j['spaces'] and all(s['tokens_free'] > 0 for s in j['spaces'])"

expect "stage another, and one again" 0 "$KVCOBRA" table stage "$dir/2.table" "$dir/3.table" --socket "$operator" --json
expect_true "two answers" "[t['already'] for t in j] == [False, True]"
expect_sentence "two tables of one model" "of one model" "$KVCOBRA" table activate "$dir/2.table" "$dir/3.table" --socket "$operator"
expect "a revision of two" 2 "$KVCOBRA" table activate "$dir/2.table" "$dir/3.table" --revision 9 \
    --socket "$operator"
# shellcheck disable=SC2046 # 65 names
expect "too many tables" 2 "$KVCOBRA" table activate $(seq -f "$dir/%.0f.table" 65) --socket "$operator"
expect "activate it" 0 "$KVCOBRA" table activate "$dir/2.table" --socket "$operator" --json
expect_true "the revision is higher" "not j['already'] and j['revision'] >= 2"
expect_sentence "an old revision" "$dir/3.table" "$KVCOBRA" table activate "$dir/3.table" --revision 1 \
    --socket "$operator"
expect "evict by the first digits" 0 "$KVCOBRA" evict --table "$(echo "$digest" | cut -c 1-6)" --yes --socket "$operator" --json
expect_true "the pages of that table" "j['pages'] == 22"
expect_sentence "evict a table that is not there" "abcdef" "$KVCOBRA" evict --table abcdef --yes --socket "$operator"
expect "reader after the swap, which says how the table fits" 0 generate --report 100 --moments
expect_true "has pages of its own table" "j['matched_tokens'] == 0 and j['generated_tokens'] == 8"
expect "the table's fit" 0 "$KVCOBRA" table list --socket "$operator" --json
# all whole chunks but the first; a report is sent at most every 2 s, so some chunks may not be reported yet
expect_true "the fit has its number of tokens" "[64 <= t['live']['tokens'] <= 21 * 64 for t in j if t['state'] == 'active'] == [True]"
expect_true "the fit has the errors" "[0 < t['live']['error']['k'] < 1 for t in j if t['state'] == 'active'] == [True]"
expect "a report without a daemon" 2 "$KVCOBRA" generate "$model" --prompt x --report 10
expect "moments without a report" 2 "$KVCOBRA" generate "$model" --prompt x --socket "$socket" --moments
expect "the next reader" 0 generate
expect_true "finds all pages" "j['matched_tokens'] == 22 * 64"

expect "a cold reader with --repeatable" 0 generate --repeatable
expect_true "finds no pages of other attention" "(j['matched_tokens'], j['published_tokens']) == (0, 22 * 64)"
cp "$dir/out" "$dir/cold.json"
expect "a reader with --repeatable that finds pages" 0 generate --repeatable
expect_true "finds all pages" "j['matched_tokens'] == 22 * 64"
expect_true "and prints the same text" "j['text'] == json.load(open('$dir/cold.json'))['text']"
expect "--repeatable without a compressed cache" 2 "$KVCOBRA" generate "$model" --prompt x --repeatable

kill -TERM "$daemon_pid"
got=0
wait "$daemon_pid" || got=$?
daemon_pid=
[ "$got" -eq 0 ] && ok "the daemon ends cleanly" || not_ok "the daemon ends cleanly"
[ ! -e "$socket" ] && [ ! -e "$operator" ] && ok "the sockets are removed" || not_ok "the sockets are removed"
expect_sentence "the daemon has ended" "$socket" "$KVCOBRA" generate "$model" --prompt x --socket "$socket"

# A daemon in a container with a PID namespace of its own
if unshare --user --map-root-user --pid --fork true 2>/dev/null; then
    unshare --user --map-root-user --pid --fork --kill-child "$KVCOBRAD" --socket "$socket" --operator-socket "$operator" \
        --pool-bytes 64M --arena-bytes 8M --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
    daemon_pid=$!
    # unshare holds the pipe too, so its end does not come
    [ "$(head -c 1 "$dir/ready" | wc -c)" -gt 0 ] && ok "the daemon in a container is ready" ||
        not_ok "the daemon in a container is ready"
    expect_sentence "a daemon that cannot see its clients" "outside its PID namespace" "$KVCOBRA" generate "$model" --prompt x \
        --socket "$socket"
    kill -KILL "$daemon_pid" # unshare ignores SIGTERM; its child ends with it
    wait "$daemon_pid" 2>/dev/null || true
    daemon_pid=
else
    skip "this user may make no PID namespace"
fi
finish
