#!/bin/sh
# The benches on small inputs: they check results before they time anything, print every figure, and refuse what makes
# no sense. No time is looked at.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

positive() {
    expect_true "$1: figures are in order" \
        "all(0 < t['min'] <= t['median'] <= t['p99'] for r in j['$2'] for t in r.values() if isinstance(t, dict) and 'p99' in t)"
}

expect "bench solve" 0 "$KVCOBRA" bench solve --repeat 1 --json
expect_json "bench solve --json" cpu results

expect "bench attend" 0 "$KVCOBRA" bench attend --repeat 2 --mib 1 --json
expect_json "bench attend --json" cpu rows
expect_true "bench attend: what was measured agrees with binary16" \
    "all(r['difference'] < 2**-5 for r in j['rows'] if r['measured'])"
positive "bench attend" rows

expect "bench service" 0 "$KVCOBRA" bench service --quick --clients 3 --daemon "$KVCOBRAD" --json
expect_json "bench service --json" cpu us asked lookup_system_calls
expect_true "bench service: a sample per client and round" "j['samples'] == 60 and j['page_bytes'] > 32768"
expect_true "bench service: figures are in order" "all(0 < t['min'] <= t['median'] <= t['p99'] for t in j['us'].values())"
expect_true "bench service: verdicts follow" "len(j['asked']) == 4 and all(a['met'] == (a['got'] < a['asked']) for a in j['asked'])"
expect_true "bench service: ratios are of what is shown" \
    "abs(j['asked'][0]['got'] * j['us']['exchange']['median'] / j['us']['lease']['median'] - 1) < 1e-6"
expect "bench service, in words" 0 "$KVCOBRA" bench service --quick --clients 1 --daemon "$KVCOBRAD"
expect_sentence "bench service without a daemon" "$dir/none" "$KVCOBRA" bench service --quick --daemon "$dir/none"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
cp "$ROOT/LICENSE" "$dir/a.txt"
"$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 1024 --window 256 -o "$dir/a.stats" --quiet
"$KVCOBRA" solve "$dir/a.stats" --bpd 3 -o "$dir/3.table" >/dev/null
bench() {
    "$KVCOBRA" bench generate "$model" --table "$dir/3.table" --text "$dir/a.txt" "$@"
}
expect "bench generate" 0 bench --contexts 64,200 --steps 8 --json
expect_json "bench generate --json" cpu kernel steps contexts prefill first_token
expect_true "bench generate: a row per context" "[r['tokens'] for r in j['contexts']] == [64, 200]"
expect_true "bench generate: every token was read once" "j['prefill']['tokens'] == 200 - 2 * 8 - 2"
expect_true "bench generate: appending is part of a step" "all(0 < r['append_share'] < 1 for r in j['contexts'])"
expect_true "bench generate: no daemon, no first tokens" "j['first_token'] is None"
positive "bench generate" contexts
expect "kernels by name" 0 env KVCOBRA_TEST_KERNEL=reference "$KVCOBRA" bench generate "$model" --table "$dir/3.table" \
    --text "$dir/a.txt" --contexts 100 --steps 4 --json
expect_true "the reference runs, and says so" "j['kernel'] == 'reference'"
expect "bench generate, in words" 0 bench --contexts 100 --steps 4
expect_sentence "a context beyond the model's" 1000000 bench --contexts 1000000
expect "a daemon that is not there" 1 bench --contexts 100 --steps 4 --socket "$dir/nobody.sock" --prompt-bytes 200
if grep -q nobody.sock "$dir/err"; then ok "it is named"; else not_ok "it is named"; fi
expect "contexts that do not grow" 2 bench --contexts 200,100
expect "more steps than tokens" 2 bench --contexts 64,100 --steps 36
expect "no table" 2 "$KVCOBRA" bench generate "$model" --text "$dir/a.txt"
expect "nothing is left of a name" 2 "$KVCOBRA" bench gnerate

mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$dir/k.sock" --operator-socket "$dir/o.sock" --pool-bytes 64M --quota-bytes 64M --arena-bytes 8M \
    --log-level 3 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
expect "the daemon is ready" 0 test "$(wc -c <"$dir/ready")" -gt 0
"$KVCOBRA" table stage "$dir/3.table" --socket "$dir/o.sock" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" --socket "$dir/o.sock" >/dev/null
expect "a prompt too short to share" 1 bench --contexts 100 --steps 4 --socket "$dir/k.sock" --prompt-bytes 20
expect "bench generate with a daemon" 0 bench --contexts 100 --steps 4 --socket "$dir/k.sock" --prompt-bytes 200 --repeat 2 \
    --json
expect_json "bench generate --socket --json" first_token
expect_true "the first process found nothing, the second what the first read" \
    "64 <= j['first_token']['matched_tokens'] < j['first_token']['prompt_tokens'] and j['first_token']['pairs'] == 2"
finish
