#!/bin/sh
# The benches on small inputs: they check results before they time them, print all numbers, and refuse wrong usage. No time
# is checked.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4 LAB=$5
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

positive() {
    expect_true "$1: numbers are in order" \
        "all(0 < t['min'] <= t['median'] <= t['p99'] for r in j['$2'] for t in r.values() if isinstance(t, dict) and 'p99' in t)"
}

expect "bench solve" 0 "$LAB" bench solve --repeat 1 --json
expect_json "bench solve --json" cpu results

expect "bench attend" 0 "$LAB" bench attend --repeat 2 --mib 1 --json
expect_json "bench attend --json" cpu rows
expect_true "bench attend: measured kernels agree with binary16" \
    "all(r['difference'] < 2**-5 for r in j['rows'] if r['measured'])"
positive "bench attend" rows
expect "bench attend, several tokens" 0 "$LAB" bench attend --repeat 1 --mib 1 --tokens 2,16 --hogs 1000 --json
expect_true "bench attend: as many rows as tokens and query heads" \
    "[(r['tokens'], r['rows']) for r in j['rows'][:8]] == [(2, 8)] * 4 + [(16, 64)] * 4"
expect_true "bench attend: many rows agree with binary16" \
    "all(r['difference'] < 2**-5 for r in j['rows'] if r['measured'])"
expect_true "bench attend: binary16 is slower than 1000 GB/s without other threads" \
    "len(j['f16_bytes_per_second_by_hogs']) == 1 and 0 < j['f16_bytes_per_second_by_hogs'][0] < 1e12"
# on a terminal of 80 columns no table continues below itself, where its rows could not be told apart
expect "bench attend in 80 columns" 0 script -qec "stty cols 80; '$LAB' bench attend --repeat 1 --mib 1 --tokens 1,4 --quiet" /dev/null
[ "$(grep -c "^ *ratio .*p99 .*p99" "$dir/out")" -eq "$(grep -c p99 "$dir/out")" ] && ok "each table in one piece" || not_ok "each table in one piece"
! grep -q "not here" "$dir/out" && grep -q " 4 tok \|left out" "$dir/out" && ok "what is not here is left out" || not_ok "what is not here is left out"
expect "bench attend with five numbers of tokens" 2 "$LAB" bench attend --tokens 1,2,3,4,5

# 300 requests of up to 11 blocks: forty prompts that grow, and prompts that never come back
python3 - >"$dir/trace.jsonl" <<'PYTHON'
import json
for i in range(300):
    first = i % 40 if i % 3 else 1000 + i
    print(json.dumps({"timestamp": i, "hash_ids": [10**9] + [100 * first + k for k in range(3 + i // 40)]}))
PYTHON
capacity() {
    "$KVCOBRA" bench capacity --trace "$dir/trace.jsonl" --daemon "$KVCOBRAD" "$@"
}
# page_shows WHAT: the page has the numbers that were printed as JSON, and a browser draws it
page_shows() {
    cp "$dir/out" "$dir/capacity.json"
    expect "capacity: $1 has the numbers of its JSON" 0 python3 "$(dirname "$0")/inspect_html_check.py" numbers "$dir/capacity.html" "$dir/capacity.json"
    browser=$(command -v chromium || command -v chromium-browser || true)
    if [ -z "$browser" ]; then
        skip "capacity: $1 in a browser: no Chromium is installed"
    else
        expect "capacity: $1 in a browser" 0 python3 "$(dirname "$0")/page_widths.py" "$browser" "$dir" "$dir/capacity.html"
    fi
}
# at 16 bits a token takes 128 KiB, a block 64 MiB
expect "bench capacity" 0 capacity --memory 16G --bits 16,2 --html "$dir/capacity.html" --json
expect_json "bench capacity --json" cpu trace requests blocks ceiling_percent points
expect_true "capacity: the pool with room for all finds all, like LRU" "(j['points'][1]['hits'] == j['points'][1]['lru_hits'] and
    abs(j['points'][1]['hit_percent'] - j['ceiling_percent']) < 1e-9 and j['points'][1]['evicted'] == 0)"
expect_true "capacity: the smaller one has no more room than it was given, and finds less" \
    "(0 < j['points'][0]['tokens'] <= j['points'][0]['tokens_asked'] == 256 * 512 and
    0 < j['points'][0]['hits'] < j['points'][1]['hits'] and j['points'][0]['evicted'] > 0)"
expect_true "capacity: nothing was left out" "j['requests'] == 300 and all(p['not_stored'] == 0 for p in j['points'])"
positive "capacity" points
page_shows "the page"
expect "bench capacity, in words" 0 capacity --memory 16G --bits 4 --requests 20
grep -q " blocks, 512 tokens each" "$dir/out" && ok "capacity: blocks of Mooncake's traces" || not_ok "capacity: blocks of Mooncake's traces"
cp "$dir/trace.jsonl" "$dir/mooncake.jsonl"
sed 's/"hash_ids": \[\([^,]*\), \([^,]*\), \([^,]*\),.*/"input_length": 40, "hash_ids": [\1, \2, \3]}/' "$dir/mooncake.jsonl" >"$dir/trace.jsonl"
expect "bench capacity of blocks of 16 tokens" 0 capacity --memory 1G --bits 4 --requests 20
grep -q " blocks, 16 tokens each" "$dir/out" && grep -q "blocks of 16 tokens, by" "$dir/err" && ok "capacity: it says so" || not_ok "capacity: it says so"
expect "bench capacity of blocks of 128 tokens" 0 capacity --memory 8G --bits 4 --requests 20 --block-tokens 128 --json
expect_true "capacity: blocks of the option" "j['block_tokens'] == 128"
expect "capacity of blocks of 0 tokens" 2 capacity --block-tokens 0
python3 - >"$dir/trace.jsonl" <<'PYTHON'
import json
for i in range(60):  # a beginning of two blocks of 64 tokens, and four blocks of their own
    print(json.dumps({"prompt": [7] * 128 + [i] * 256, "output_tokens": 1}))
PYTHON
expect "bench capacity of vLLM's requests" 0 capacity --memory 2G --bits 4 --json
expect_true "capacity: prompts are cut into blocks" "(j['block_tokens'] == 64 and j['blocks'] == 360 and j['different_blocks'] == 242 and
    j['points'][0]['hits'] == 118)"
python3 -c 'print("{\"prompt\": \"%s\"}" % ("A question about a long text. " * 50))' >"$dir/trace.jsonl"
expect "bench capacity of texts" 0 capacity --memory 2G --bits 4
grep -q "4 bytes count as a token" "$dir/err" && ok "capacity: it says what a token is" || not_ok "capacity: it says what a token is"
mv "$dir/mooncake.jsonl" "$dir/trace.jsonl"
expect "bench capacity with a disk" 0 capacity --memory 16G --disk 256G --bits 16,2 --html "$dir/capacity.html" --json
expect_true "capacity: a disk with room for all adds what memory forgot" "(j['disk_bytes'] == 256 << 30 and
    j['points'][0]['disk_hits'] == j['points'][0]['disk_lru_hits'] > j['points'][0]['hits'] and
    j['points'][0]['disk_read'] > 0 and j['points'][0]['disk_lost'] == 0 and
    abs(j['points'][0]['disk_hit_percent'] - j['ceiling_percent']) < 1e-9)"
expect_true "capacity: a disk adds nothing to a memory with room for all" \
    "j['points'][1]['disk_hits'] == j['points'][1]['hits'] and j['points'][1]['disk_read'] == 0"
page_shows "the page with a disk"
expect "bench capacity with a disk, in words" 0 capacity --memory 16G --disk 256G --bits 4 --requests 20
grep -q "tokens on the disk" "$dir/out" && ok "capacity: the table of the disk" || not_ok "capacity: the table of the disk"
expect_sentence "capacity: a disk that is too small" "give more --disk" capacity --memory 16G --disk 1G --bits 4
expect "capacity with a disk of 0 bytes" 2 capacity --disk 0
expect_sentence "capacity: a pool that is too small" "give more --memory" capacity --memory 64M
expect_sentence "capacity: no file" "none.jsonl" "$KVCOBRA" bench capacity --trace "$dir/none.jsonl" --daemon "$KVCOBRAD"
expect_sentence "capacity: no trace" "line 1" "$KVCOBRA" bench capacity --trace "$0" --daemon "$KVCOBRAD"
expect_sentence "capacity: the page would replace the trace" "trace.jsonl" capacity --html "$dir/trace.jsonl"
expect "capacity without a trace" 2 "$KVCOBRA" bench capacity
expect "capacity with a width that is none" 2 capacity --bits 3,x

tier() {
    "$KVCOBRA" bench tier --dir "$dir" --daemon "$KVCOBRAD" --page-bytes 8K --pages 4 --repeat 1 "$@"
}
expect "bench tier" 0 tier --restart-pages 600 --json
expect_json "bench tier --json" cpu folder page_bytes rates no_cluster decrypting ready_s answers_quiet answers_while_fetching restart first_token
expect_true "tier: rates, with the command of the other program or why there is none" \
    "all(r['bytes_per_second']['min'] > 0 and (r['skipped'].startswith('there is no ') or r['ratio'] > 0) for r in j['rates'])"
expect_true "tier: the disk, and the cluster or why there is none" \
    "len(j['rates']) == (3 if j['no_cluster'] else 5) and (j['ready_s']['cluster'] is None) == (j['no_cluster'] != '')"
expect_true "tier: tokens come from memory and from the disk" "j['ready_tokens'] == 256 and j['ready_s']['memory'] > 0 and j['ready_s']['disk'] > 0"
expect_true "tier: answers are in order" "all(a['count'] > 0 and 0 < a['median_s'] <= a['p999_s'] <= a['max_s']
    for a in (j['answers_quiet'], j['answers_while_fetching']))"
expect_true "tier: the pages of before the restart" "j['restart']['pages'] == 600 and 0 < j['restart']['serving_s'] <= j['restart']['ready_s']"
find "$dir" -name 'kvcobra-bench*' >"$dir/left"
[ ! -s "$dir/left" ] && ok "tier: nothing is left" || not_ok "tier: nothing is left"
# without the other programs
mkdir "$dir/bare"
for program in sh env; do ln -s "$(command -v "$program")" "$dir/bare/$program"; done
bare() {
    PATH="$dir/bare" "$KVCOBRA" bench tier --dir "$dir" --daemon "$KVCOBRAD" --page-bytes 8K --pages 1 --repeat 1 --restart-pages 0
}
expect "bench tier alone" 0 bare
grep -q "there is no fio on this machine" "$dir/out" && grep -q "no cluster was measured: there is no redis-server" "$dir/out" \
    && ok "tier: it says what is missing" || not_ok "tier: it says what is missing"
expect_sentence "tier: a folder that does not exist" "none" "$KVCOBRA" bench tier --dir "$dir/none" --daemon "$KVCOBRAD"
expect "tier: a model without a table" 2 tier --model "$dir/model.gguf"
expect "tier: pages of no size" 2 "$KVCOBRA" bench tier --page-bytes 1K

service() {
    "$LAB" bench service --quick --daemon "$KVCOBRAD" "$@"
}
expect "bench service load" 0 service load --clients 3 --json
expect_json "bench service load --json" cpu load asked
expect_true "load: a sample per client and round" "j['load']['samples'] == 60 and j['load']['page_bytes'] > 32768"
expect_true "load: numbers are in order" "all(0 < t['min'] <= t['median'] <= t['p99'] for t in j['load']['us'].values())"
expect_true "load: verdicts follow" "len(j['asked']) == 4 and all(a['met'] == (a['got'] < a['asked']) for a in j['asked'])"
expect_true "load: ratios are those of the printed times" \
    "abs(j['asked'][0]['got'] * j['load']['us']['exchange']['median'] / j['load']['us']['lease']['median'] - 1) < 1e-6"
expect "bench service memory" 0 service memory --json
# 8 MiB of slots of 256 bytes; leases: a tenth of these slots, or one message per client if that is more
expect_true "memory: the pool is full, and every client has its leases" \
    "all(j['memory'][s]['pages'] == 32768 and j['memory'][s]['leases'] == 200 for s in ('filled', 'churned'))"
expect_true "memory: later pages replaced earlier ones" \
    "j['memory']['churned_pages'] == 20 * 512 and j['memory']['churned']['evictions'] == 20 * 512"
expect_true "memory: sums" "all(abs(m['bytes_per_page'] * m['pages'] - m['slot_record_bytes'] - m['index_bytes'] - m['hold_bytes']
    - m['heap_bytes']) < 1 for m in (j['memory']['filled'], j['memory']['churned']))"
# the minimum is 48 bytes per slot record and 28 per index entry (key, generation, slot); the kernel counts at least as much
expect_true "memory: not less than the minimum" "all(m['slot_record_bytes'] >= 48 * m['pages'] and m['index_bytes'] >= 28 * m['pages']
    and m['resident_bytes'] >= m['slot_record_bytes'] for m in (j['memory']['filled'], j['memory']['churned']))"
expect "bench service swap" 0 service swap --clients 3 --json
expect_true "swap: all swaps, while sequences run" "j['swap']['swaps'] >= 10 and j['swap']['sequences'] > 0"
expect_true "swap: four reads of each sequence, none wrong, nothing failed" \
    "j['swap']['reads'] == 4 * j['swap']['sequences'] and j['swap']['wrong'] == j['swap']['failed'] == 0 and not j['swap']['failure']"
expect_true "swap: whole chunks are published" "j['swap']['published_tokens'] > 0 and \
j['swap']['published_tokens'] % 64 == 0 and j['swap']['matched_tokens'] <= j['swap']['published_tokens']"
expect_true "swap: calls of each kind add up" \
    "all(l['calls'] == sum(o['calls'] for o in l['of'].values()) for l in j['swap']['us'].values())"
expect_true "swap: numbers are in order" \
    "all(0 < l['median'] <= l['p99'] <= l['p999'] <= l['max'] for s in j['swap']['us'].values() for l in [s, *s['of'].values()])"
printf 'keep-pool = yes\nstate-dir = %s/state\n' "$dir" >"$dir/keep.conf"
scenarios="load memory swap"
if "$KVCOBRAD" --check-config "$dir/keep.conf" 2>"$dir/err" >/dev/null; then
    scenarios="$scenarios restart"
    expect "bench service restart" 0 service restart --json
    expect_true "restart: every page found, every hold kept" "j['restart']['restarts'] == 2 and \
j['restart']['pages'] == j['restart']['found'] == j['restart']['held'] == 2000"
    expect_true "restart: the sample has the written bytes" "j['restart']['sampled'] == j['restart']['identical'] == 4"
    expect_true "restart: generations grow" "j['restart']['lower_generations'] == 0 and len(j['asked']) == 5"
else
    skip "bench service restart: $(cat "$dir/err")"
fi
# shellcheck disable=SC2086
expect "bench service, in words" 0 service --clients 1 $scenarios
for scenario in $scenarios; do
    if grep -q "^$scenario: " "$dir/out"; then ok "$scenario in words"; else not_ok "$scenario in words"; fi
done
expect "an unknown scenario" 2 service lod
expect_sentence "bench service without a daemon" "$dir/none" "$LAB" bench service --quick --daemon "$dir/none"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
cp "$ROOT/LICENSE" "$dir/a.txt"
"$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 1024 --window 256 -o "$dir/a.stats" --quiet
"$KVCOBRA" solve "$dir/a.stats" --bpd 3 -o "$dir/3.table" >/dev/null
expect "bench engine" 0 "$LAB" bench engine "$dir/3.table" --tokens 200 --repeat 2 --json
expect_json "bench engine --json" cpu tokens shape publish_ms read_processor_ms read_ms memcpy_ms ratio error
expect_true "bench engine: what is read is the text within the table's error" "0 < j['error'] < 0.25"
expect_true "bench engine: numbers are in order" \
    "all(0 < t['min'] <= t['median'] <= t['p99'] for t in j.values() if isinstance(t, dict) and 'p99' in t)"
expect "bench engine, in words" 0 "$LAB" bench engine "$dir/3.table" --tokens 65 --repeat 1 --threads 1
expect "bench engine without a table" 2 "$LAB" bench engine
expect "bench engine with a file that is no table" 1 "$LAB" bench engine "$dir/a.txt"
bench() {
    "$LAB" bench generate "$model" --table "$dir/3.table" --text "$dir/a.txt" "$@"
}
expect "bench generate" 0 bench --contexts 64,200 --steps 8 --json
expect_json "bench generate --json" cpu kernel steps contexts prefill first_token
expect_true "bench generate: a row per context" "[r['tokens'] for r in j['contexts']] == [64, 200]"
expect_true "bench generate: every token was read once" "j['prefill']['tokens'] == 200 - 2 * 8 - 2"
expect_true "bench generate: appending is part of a step" "all(0 < r['append_share'] < 1 for r in j['contexts'])"
expect_true "bench generate: without a daemon no first tokens" "j['first_token'] is None"
positive "bench generate" contexts
expect "kernels by name" 0 env KVCOBRA_TEST_KERNEL=reference "$LAB" bench generate "$model" --table "$dir/3.table" \
    --text "$dir/a.txt" --contexts 100 --steps 4 --json
expect_true "the reference runs and is named" "j['kernel'] == 'reference'"
expect "bench generate, in words" 0 bench --contexts 100 --steps 4
expect_sentence "a context beyond the model's" 1000000 bench --contexts 1000000
expect "a daemon that is not there" 1 bench --contexts 100 --steps 4 --socket "$dir/none.sock" --prompt-bytes 200
if grep -q none.sock "$dir/err"; then ok "it is named"; else not_ok "it is named"; fi
expect "contexts that do not grow" 2 bench --contexts 200,100
expect "more steps than tokens" 2 bench --contexts 64,100 --steps 36
expect "no table" 2 "$LAB" bench generate "$model" --text "$dir/a.txt"
expect "an unknown bench" 2 "$LAB" bench gnerate

# kvcobra runs the laboratory's benches by their names, or says what is missing
for bench in attend engine generate service solve; do
    "$LAB" bench $bench --help >"$dir/want"
    expect "kvcobra bench $bench is kvcobra-lab's" 0 "$KVCOBRA" bench $bench --help
    cmp -s "$dir/want" "$dir/out" && ok "with its help" || not_ok "with its help"
    sed -n '/./p' "$dir/want" | tail -n 1 | grep -q '^  ' && ok "help of $bench ends with an example" ||
        not_ok "help of $bench ends with an example"
done
expect "its exit status is passed on" 2 "$KVCOBRA" bench engine
mkdir "$dir/bin"
cp "$KVCOBRA" "$dir/bin/kvcobra"
expect_sentence "without the laboratory" "install the package kvcobra-lab" env PATH=/usr/bin:/bin \
    LD_LIBRARY_PATH="$(dirname "$KVCOBRA")/../client${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$dir/bin/kvcobra" bench solve

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
expect_true "the first process found nothing, the second found the prompt of the first" \
    "64 <= j['first_token']['matched_tokens'] < j['first_token']['prompt_tokens'] and j['first_token']['pairs'] == 2"
finish
