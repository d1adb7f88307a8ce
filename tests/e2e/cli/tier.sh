#!/bin/sh
# kvcobra tier: status, write, resume and drop of a disk tier, and wrong use.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
mkdir -m 700 "$dir/disk" "$dir/state"
mkfifo "$dir/ready"

serve() {
    "$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
        --state-dir "$dir/state" --log-level 5 "$@" --ready-fd 3 3>"$dir/ready" 2>>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
}

# wrong use
expect "no action" 2 "$KVCOBRA" tier
expect "an unknown action" 2 "$KVCOBRA" tier evict
expect "two actions" 2 "$KVCOBRA" tier status write
expect "a tenant without drop" 2 "$KVCOBRA" tier write --tenant uid-1
expect "a negative time" 2 "$KVCOBRA" tier write --timeout -1
expect "three digits of a digest" 2 "$KVCOBRA" tier drop --table abc
expect_sentence "no daemon" "$KVCOBRA_OPERATOR_SOCKET" "$KVCOBRA" tier status

# a daemon without a disk tier
serve
for action in status write resume "drop --yes"; do
    # shellcheck disable=SC2086 # the words of a command
    expect_sentence "$action without a disk tier" "set disk-dir" "$KVCOBRA" tier $action
done
kill -TERM "$daemon_pid"
wait "$daemon_pid" || not_ok "the daemon ends"

serve --disk-dir "$dir/disk" --disk-bytes 64M
expect "write of an empty pool, while the folder may still be opened" 0 "$KVCOBRA" tier write
expect "stage" 0 "$KVCOBRA" table stage "$dir/3.table"
expect "activate" 0 "$KVCOBRA" table activate "$dir/3.table"
expect "publish" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos
expect "write" 0 "$KVCOBRA" tier write --json
expect_true "everything is written" "j['all_written'] and j['state'] == 'ready' and j['pages'] > 0 and j['lost'] == 0"
expect "status" 0 "$KVCOBRA" tier status
grep -Eq "^$dir/disk: ready(: .* is on tmpfs.*)?$" "$dir/out" && ok "the folder and the state" || not_ok "the folder and the state"
grep -Eq "^written [1-9][0-9]* pages" "$dir/out" && ok "what was written" || not_ok "what was written"
expect "status as JSON" 0 "$KVCOBRA" tier status --json
expect_json "all its values" state message folder all_written locked segment_bytes segments segments_max physical_bytes pages writing \
    fetching written_pages written_bytes read_pages read_bytes missed refused timeouts failed unopened opened_late discarded lost skipped read_bytes_per_second
expect_sentence "resume of a tier that is ready" "not off" "$KVCOBRA" tier resume

# pages come back from the disk
expect "evict" 0 "$KVCOBRA" evict --yes
expect "match" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos
expect "status after a fetch" 0 "$KVCOBRA" tier status --json
expect_true "pages were read" "j['read_pages'] > 0 and j['unopened'] == 0"

# a prompt that only the disk has is forgotten there
short=$("$KVCOBRA" table list --json | sed -n 's/.*"digest": "\([0-9a-f]*\)".*/\1/p' | head -n 1)
expect "evict before a flush" 0 "$KVCOBRA" evict --yes
expect "pin of a prompt that only the disk has" 0 "$KVCOBRA" pin --tenant "uid-$(id -u)" --table "$short" --for 1h --yes --json \
    --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt"
expect_true "its pages were fetched" "j['pages'] > 0 and j['pinned_bytes'] > 0"
expect "match without waiting" 0 "$KVCOBRA" lookup --tenant "uid-$(id -u)" --table "$short" --json --model "$dir/model.gguf" \
    --prompt-file "$dir/prompt.txt"
expect_true "they are in memory" "j['plain']['chunks'][0]['memory'] and j['plain']['chunks'][0]['pinned_seconds'] > 0"
expect "evict what is pinned" 0 "$KVCOBRA" evict --yes
printf '%0200d' 7 | sed 's/./& /g' >"$dir/unknown.txt"
expect "pin of a prompt without pages" 1 "$KVCOBRA" pin --tenant "uid-$(id -u)" --table "$short" --for 1h --yes \
    --tokens-file "$dir/unknown.txt"
grep -q "none came from the disk or the cluster" "$dir/err" && ok "it says so" || not_ok "it says so"
expect "forget a prompt" 0 "$KVCOBRA" flush --tenant "uid-$(id -u)" --table "$short" --yes --json --model "$dir/model.gguf" \
    --prompt-file "$dir/prompt.txt"
expect_true "the disk had it" "j['forgotten_pages'] > 0 and j['memory_pages'] == 0 and j['found_tokens'] == 0"
expect "match after a flush" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos --json
expect_true "nothing is found" "j['matched_tokens'] == 0"

# drop
expect "evict again" 0 "$KVCOBRA" evict --yes
expect_sentence "drop of a table that is not there" "the daemon has no table" "$KVCOBRA" tier drop --table 0123456789 --yes
expect "drop of a tenant without pages" 1 "$KVCOBRA" tier drop --tenant uid-4242 --yes
grep -q "the disk has no pages of tenant uid-4242" "$dir/err" && ok "it says so" || not_ok "it says so"
expect "status after a drop of nothing" 0 "$KVCOBRA" tier status --json
expect_true "nothing is dropped" "j['pages'] > 0"
expect "drop" 0 "$KVCOBRA" tier drop --tenant "uid-$(id -u)" --yes --json
expect "status after a drop" 0 "$KVCOBRA" tier status --json
expect_true "nothing is left" "j['pages'] == 0 and j['segments'] == 0"
expect "drop of nothing" 0 "$KVCOBRA" tier drop --yes

# a folder that goes away and comes back
mv "$dir/disk" "$dir/away"
is_off() {
    "$KVCOBRA" tier status >"$dir/out" && grep -q ": off: " "$dir/out"
}
wait_for "a tier that is off" is_off
expect "status of the daemon" 0 "$KVCOBRA" status
grep -q "^tiers     disk off, cluster none" "$dir/out" && ok "status says so" || not_ok "status says so"
expect "doctor" 1 "$KVCOBRA" doctor
grep -q "^wrong disk tier .*off: " "$dir/out" && ok "doctor says so" || not_ok "doctor says so"
expect_sentence "write of a tier that is off" "the disk tier is" "$KVCOBRA" tier write
expect_sentence "drop of a tier that is off" "the disk tier is" "$KVCOBRA" tier drop --yes
mv "$dir/away" "$dir/disk"
"$KVCOBRA" tier resume >/dev/null 2>&1 || true # or it resumed by itself
is_ready() {
    "$KVCOBRA" tier status >"$dir/out" && grep -q ": ready" "$dir/out"
}
wait_for "a tier that is ready" is_ready
expect "write of a tier that came back" 0 "$KVCOBRA" tier write
finish
