#!/bin/sh
# Operators' commands: names of users, limits that are looked at, and checks that come before announcements.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
me=$(id -un)
uid=$(id -u)
"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
for budget in 2 3; do
    "$KVCOBRA" solve "$dir/m.stats" --bpd $budget -o "$dir/$budget.table" >/dev/null
done
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
printf '[tenant crew]\nusers = 4294967290\nquota-bytes = 32M\n' >"$dir/k.conf"
mkfifo "$dir/ready"
"$KVCOBRAD" --config "$dir/k.conf" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M \
    --arena-bytes 8M --quota-bytes 64M --log-level 5 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
expect "stage" 0 "$KVCOBRA" table stage "$dir/3.table"
expect "activate" 0 "$KVCOBRA" table activate "$dir/3.table"
expect "publish" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos

digest=$("$KVCOBRA" table list --json | sed -n 's/.*"digest": "\([0-9a-f]*\)".*/\1/p' | head -n 1)
short=$(echo "$digest" | cut -c 1-6)
matched() {
    expect "$1" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos --json
}
flush() {
    name=$1
    shift
    expect "$name" 0 "$KVCOBRA" flush --tenant "$me" --table "$short" --yes --json "$@"
}
# looking up and pinning
prefix_of() {
    name=$1 command=$2
    shift 2
    expect "$name" 0 "$KVCOBRA" "$command" --tenant "$me" --table "$short" --json "$@"
}
prompt="--model $dir/model.gguf --prompt-file $dir/prompt.txt"
# shellcheck disable=SC2086 # the words of a command
prefix_of "look up a prompt" lookup $prompt
expect_true "its pages are in memory" "(j['tenant'] == 'uid-$uid' and j['plain']['findable_tokens'] >= 128 and
    j['plain']['chunks'][0] == {'first_token': 0, 'tokens': 64, 'memory': True, 'disk': False, 'cluster': False, 'holds': 0, 'pinned_seconds': 0,
    'reason': ''} and j['repeatable']['findable_tokens'] == 0 and j['elsewhere'] == [])"
findable=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["plain"]["findable_tokens"])' "$dir/out")
# shellcheck disable=SC2086
expect "as text" 0 "$KVCOBRA" lookup --tenant "$me" --table "$short" $prompt
grep -q "^clients find $findable of " "$dir/out" && grep -q "^0 to $((findable - 1))  *memory  *no  *-" "$dir/out" &&
    ok "in one row" || not_ok "in one row"
# shellcheck disable=SC2086
prefix_of "with a salt" lookup $prompt --salt x
expect_true "they are nowhere, and without the salt there" "(j['plain']['findable_tokens'] == 0 and
    {c['reason'] for c in j['plain']['chunks']} == {'unknown'} and
    j['elsewhere'] == [{'tenant': 'uid-$uid', 'table': '$digest', 'without_salt': True}])"
# shellcheck disable=SC2086
prefix_of "pin" pin $prompt --for 2h --yes
expect_true "the pages are pinned" "(j['pages'] == $findable // 64 and j['missing'] == j['tokens'] // 64 - j['pages'] and
    j['seconds'] == 7200 and 0 < j['pinned_bytes'] <= j['limit_bytes'])"
# shellcheck disable=SC2086
prefix_of "look up a pinned prompt" lookup $prompt
expect_true "it says for how long" "7000 < j['plain']['chunks'][0]['pinned_seconds'] <= 7200"
expect "status of a pinned prompt" 0 "$KVCOBRA" status
grep -q "is pinned by operators" "$dir/out" && ok "it says so" || not_ok "it says so"
[ "$(wc -L <"$dir/out")" -le 80 ] && ok "in 80 columns" || not_ok "in 80 columns"
# shellcheck disable=SC2086
expect "unpin" 0 "$KVCOBRA" unpin --tenant "$me" --table "$short" $prompt
grep -q "have ended; tenant uid-$uid has 0 B pinned" "$dir/out" && ok "it says what is left" || not_ok "it says what is left"
# shellcheck disable=SC2086
expect "pin without a yes" 1 "$KVCOBRA" pin --tenant "$me" --table "$short" $prompt --for 2h
for wrong in "" "--for 2" "--for h" "--for 0s" "--for 366d" "--for 2h3" "--for -2h" "--for 2y"; do
    # shellcheck disable=SC2086
    expect "pin $wrong" 2 "$KVCOBRA" pin --tenant "$me" --table "$short" $prompt $wrong
done
expect "unpin --for" 2 "$KVCOBRA" unpin --tenant "$me" --table "$short" --tokens-file x --for 2h
expect_sentence "look up a table that is not there" "000000" "$KVCOBRA" lookup --tenant "$me" --table 000000 \
    --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"

# a user's own view, over the socket of clients
expect "the own tenant" 0 "$KVCOBRA" status --socket "$KVCOBRA_SOCKET"
grep -q "^active    table $(echo "$short" | cut -c 1-6)" "$dir/out" && grep -q "^uid-$uid\|^$me" "$dir/out" && ! grep -q "^pool" "$dir/out" &&
    ok "its use and the active table, and no more" || not_ok "its use and the active table, and no more"
expect "the own tenant as JSON" 0 "$KVCOBRA" status --socket "$KVCOBRA_SOCKET" --json
expect_true "one tenant" "[t['name'] for t in j['tenants']] == ['uid-$uid'] and 'devices' not in j and 'pid' not in j"
expect "the own prompt" 0 "$KVCOBRA" lookup --socket "$KVCOBRA_SOCKET" --table "$short" --json --model "$dir/model.gguf" \
    --prompt-file "$dir/prompt.txt"
expect_true "is found" "j['plain']['findable_tokens'] >= 128"
expect_sentence "the prompt of a tenant, as a client" "for operators" "$KVCOBRA" lookup --socket "$KVCOBRA_SOCKET" --tenant "$me" \
    --table "$short" --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"
expect_sentence "no tenant, as an operator" "--tenant is needed" "$KVCOBRA" lookup --table "$short" --model "$dir/model.gguf" \
    --prompt-file "$dir/prompt.txt"
expect_sentence "flushing as a client" "socket of operators" "$KVCOBRA" flush --socket "$KVCOBRA_SOCKET" --tenant "$me" --yes \
    --table "$short" --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"

# flushing: a prompt that was just served is forgotten, but not what another one begins with
matched "a prompt that was published"
expect_true "is found" "j['matched_tokens'] >= 128"
head -c 900 "$dir/prompt.txt" >"$dir/other.txt"
tail -c 900 "$ROOT/LICENSE" >>"$dir/other.txt"
found() { # NAME FILE: how many tokens clients find of a prompt
    expect "$1" 0 "$KVCOBRA" lookup --tenant "$me" --table "$short" --json --model "$dir/model.gguf" --prompt-file "$2"
}
expect "another prompt that begins alike" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/other.txt" --share --tokens 4 \
    --ignore-eos
expect "pin the first one" 0 "$KVCOBRA" pin --tenant "$me" --table "$short" --for 1h --model "$dir/model.gguf" --prompt-file \
    "$dir/prompt.txt" --yes
flush "flush the first one" --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"
expect_true "its own pages go, those of both stay" "(j['tenant'] == 'uid-$uid' and j['forgotten_pages'] > 0 and j['held'] == 0 and
    j['from'] == j['shared_tokens'] == j['found_tokens'] >= 64)"
shared=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["shared_tokens"])' "$dir/out")
found "the first one after that" "$dir/prompt.txt"
expect_true "only the common tokens are found, and nothing behind is pinned" "(j['plain']['findable_tokens'] == $shared and
    not any(c['memory'] or c['pinned_seconds'] for c in j['plain']['chunks'] if c['first_token'] >= $shared))"
found "the other one after that" "$dir/other.txt"
expect_true "is found beyond them" "j['plain']['findable_tokens'] > $shared"
expect "flush the first one again" 1 "$KVCOBRA" flush --tenant "$me" --table "$short" --yes --model "$dir/model.gguf" --prompt-file \
    "$dir/prompt.txt"
grep -q "^no page was forgotten" "$dir/out" && grep -q "^tokens 0 to $((shared - 1)) are still found: other prompts" "$dir/out" &&
    ok "it says what is still found" || not_ok "it says what is still found"
flush "flush it from its beginning on" --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --from 0
expect_true "nothing is found" "j['found_tokens'] == 0 and j['from'] == 0 and j['forgotten_pages'] == $shared // 64"
found "the other one after that" "$dir/other.txt"
expect_true "is not found either" "j['plain']['findable_tokens'] == 0"
matched "the prompt after that"
expect_true "is computed again" "j['matched_tokens'] == 0"
matched "once more"
expect_true "it was published again" "j['matched_tokens'] >= 128"
expect "flush as text" 0 "$KVCOBRA" flush --tenant "$me" --table "$short" --yes --model "$dir/model.gguf" --prompt-file \
    "$dir/prompt.txt" --from 64
grep -q "^tokens 64 to [0-9]* are forgotten, with what continues them: [0-9]* pages" "$dir/out" &&
    grep -q "^tokens 0 to 63 are still found" "$dir/out" && ok "the answer as text" || not_ok "the answer as text"
matched "and again"
seq -s ', ' 1 70 >"$dir/tokens.txt"
expect "flush tokens that are not there" 1 "$KVCOBRA" flush --tenant "$me" --table "$short" --yes --json --tokens-file \
    "$dir/tokens.txt" --salt x
expect_true "no page goes" "j['forgotten_pages'] == 0 and j['memory_pages'] == 0 and j['tokens'] == 64 and j['found_tokens'] == 0"
expect "a flush of some heads" 1 "$KVCOBRA" flush --tenant "$me" --table "$short" --yes --tokens-file "$dir/tokens.txt" --heads 0,1
expect "without a yes" 1 "$KVCOBRA" flush --tenant "$me" --table "$short" --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"
for text in "1 2 3" "1 2 x" "4294967296" "-1"; do
    echo "$text" >"$dir/short.txt"
    expect_sentence "a prefix '$text'" "$([ "$text" = "1 2 3" ] && echo "pages have 64" || echo "not a list of token ids")" \
        "$KVCOBRA" flush --tenant "$me" --table "$short" --tokens-file "$dir/short.txt" --yes
done
expect_sentence "no such file" "$dir/none.txt" "$KVCOBRA" flush --tenant "$me" --table "$short" --tokens-file "$dir/none.txt" --yes
expect_sentence "flush for no tenant" "stranger-4711" "$KVCOBRA" flush --tenant stranger-4711 --table "$short" \
    --tokens-file "$dir/tokens.txt" --yes
for wrong in "--table $short --tokens-file x" "--tenant $me --tokens-file x" "--tenant $me --table $short" \
    "--tenant $me --table $short --prompt-file x" "--tenant $me --table $short --tokens-file x --model y" \
    "--tenant $me --table $short --tokens-file x --heads 3" "--tenant $me --table $short --tokens-file x --from -1"; do
    # shellcheck disable=SC2086 # the words of a command
    expect "flush $wrong" 2 "$KVCOBRA" flush $wrong
done

# names
expect "limits of a user by name" 0 "$KVCOBRA" quota "$me" --json
expect_true "they are of uid-$uid" "j['tenant'] == 'uid-$uid' and j['quota_bytes'] == 64 << 20 and j['used_bytes'] > 0"
expect "limits of a section that never connected" 0 "$KVCOBRA" quota crew --json
expect_true "they are its own" "j['tenant'] == 'crew' and j['quota_bytes'] == 32 << 20 and j['used_bytes'] == 0"
expect "limits of a user that never connected" 0 "$KVCOBRA" quota uid-4242
grep -qx "uid-4242: maximum 64.0 MiB, guaranteed 0 B, in use 0 B" "$dir/out" && ok "they are the defaults" ||
    not_ok "they are the defaults"
expect "looking creates no tenant" 0 "$KVCOBRA" status --json
expect_true "status has one tenant" "[t['name'] for t in j['tenants']] == ['uid-$uid']"
expect "status as text" 0 "$KVCOBRA" status
grep -q "^uid-$uid ($me)" "$dir/out" && ok "status has the user's name" || not_ok "status has the user's name"
for command in "quota stranger-4711 --max 32M" "evict --tenant stranger-4711" \
    "table canary $dir/2.table --tenant stranger-4711"; do
    # shellcheck disable=SC2086 # the words of a command
    expect_sentence "$command" "there is no tenant 'stranger-4711'" "$KVCOBRA" $command --yes
done

# sentences that would announce what cannot be done do not come first
expect_sentence "a maximum below an arena" "no room for a page beside one client's arena (8.0 MiB" \
    "$KVCOBRA" quota "$me" --max 8M --yes
expect_sentence "a guarantee above the maximum" "more than the maximum" "$KVCOBRA" quota "$me" --guarantee 65M --yes
expect_sentence "a guarantee above the pool" "more than the pool" "$KVCOBRA" quota "$me" --max 1G --guarantee 65M --yes
expect "a maximum above the pool" 0 "$KVCOBRA" quota "$me" --max 128M --yes
grep -q "more than the pool of 64.0 MiB" "$dir/err" && ok "a note says so" || not_ok "a note says so"
grep -q "room for 15 clients" "$dir/err" && ok "and how many clients fit" || not_ok "and how many clients fit"
expect_sentence "evicting from a tenant without anything" "has no sessions and no pages" "$KVCOBRA" evict --tenant uid-4242 --yes
expect_sentence "a shadow that is not staged" "does not have table" "$KVCOBRA" table shadow "$dir/2.table" --share 5 --yes
expect_sentence "a shadow that is active" "is active" "$KVCOBRA" table shadow "$dir/3.table" --share 5 --yes
expect_sentence "a rollback without an earlier table" "no earlier table" "$KVCOBRA" table rollback "$dir/3.table" --yes
expect_sentence "retiring the active table" "is active" "$KVCOBRA" table retire "$dir/3.table" --yes
expect_sentence "staging statistics" "not an allocation table but a statistics file: 'kvcobra solve" "$KVCOBRA" table stage \
    "$dir/m.stats"
expect_sentence "staging a model" "not an allocation table but a GGUF model: 'kvcobra calibrate" "$KVCOBRA" table stage "$dir/model.gguf"
expect_sentence "staging a text" "not an allocation table but a text" "$KVCOBRA" table stage "$ROOT/LICENSE"
head -c 1000 "$dir/3.table" >"$dir/broken.table"
expect_sentence "staging a damaged table" "broken.table: it has 1000 bytes" "$KVCOBRA" table stage "$dir/broken.table"
expect "the list" 0 "$KVCOBRA" table list --json
expect_true "has none of these files" "len(j) == 1"

# fetching
digest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["digest"])' "$dir/out")
expect "fetch by eight digits" 0 "$KVCOBRA" table fetch "$(echo "$digest" | cut -c 1-8)" -o "$dir/fetched.table"
cmp -s "$dir/fetched.table" "$dir/3.table" && ok "it is the file that was staged" || not_ok "it is the file that was staged"
expect "fetch as a client" 0 "$KVCOBRA" table fetch "$digest" --output "$dir/client.table" --socket "$KVCOBRA_SOCKET" --json
expect_true "it is the same" "j == {'digest': '$digest', 'file': '$dir/client.table', 'bytes': $(wc -c <"$dir/3.table")}"
cmp -s "$dir/client.table" "$dir/3.table" && ok "to the byte" || not_ok "to the byte"
echo precious >"$dir/kept"
expect_sentence "fetch a table that is not there" "has no table 000000" "$KVCOBRA" table fetch 000000 -o "$dir/kept"
expect_sentence "fetch by three digits" "first six digits" "$KVCOBRA" table fetch abc -o "$dir/kept"
expect_sentence "fetch by a file" "first six digits" "$KVCOBRA" table fetch "$dir/3.table" -o "$dir/kept"
expect_sentence "into a folder that is not there" "$dir/none/x.table" "$KVCOBRA" table fetch "$digest" -o "$dir/none/x.table"
ln -s kept "$dir/link"
expect_sentence "into a link" "$dir/link" "$KVCOBRA" table fetch "$digest" -o "$dir/link"
[ "$(cat "$dir/kept")" = precious ] && [ -z "$(find "$dir" -name '*.tmp*' -o -name '.*table*')" ] && ok "no file is changed or left" ||
    not_ok "no file is changed or left"
expect "fetch without --output" 2 "$KVCOBRA" table fetch "$digest"
expect "list with --output" 2 "$KVCOBRA" table list --output "$dir/kept"

expect_sentence "three digits of a digest" "at least its first six digits" "$KVCOBRA" table activate abc
expect "stage another" 0 "$KVCOBRA" table stage "$dir/2.table"
expect "a canary for a user by name" 0 "$KVCOBRA" table canary "$dir/2.table" --tenant "$me" --yes
grep -q "^all new sequences of 1 tenant use table" "$dir/err" && ok "what it will do" || not_ok "what it will do"
grep -q "0 of 256" "$dir/err" && not_ok "no share of nothing" || ok "no share of nothing"
expect "evict by a user's name" 0 "$KVCOBRA" evict --tenant "$me" --yes
finish
