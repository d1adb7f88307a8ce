#!/bin/sh
# calibrate, solve, inspect, eval, generate on a small model: the output of each step is the input of the next one, every --json
# parses, and the numbers agree with their definitions.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
cp "$ROOT/LICENSE" "$dir/a.txt" # the model has byte tokens, so any text can be tokenised
tail -c 4000 "$ROOT/LICENSE" >"$dir/b.txt" # short enough for the model, and constant

expect "calibrate" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 2048 --window 256 -o "$dir/1.stats"
expect "calibrate again, as JSON" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 2048 --window 256 \
    -o "$dir/2.stats" --json
expect_json "calibrate --json"
expect "the same seed gives the same statistics" 0 cmp "$dir/1.stats" "$dir/2.stats"
expect "calibrate without a text" 0 "$KVCOBRA" calibrate "$model" --tokens 512 --window 128 -o "$dir/3.stats"
expect "statistics of four kinds of text" 0 "$KVCOBRA" inspect "$dir/3.stats"
grep -q "2: model: dialogue, 124 tokens, vectors of 124" "$dir/out" && ok "inspect names the kinds" ||
    not_ok "inspect names the kinds"
expect "a table fitted to kinds that were left out" 0 "$KVCOBRA" solve "$dir/3.stats" --bpd 3 -o "$dir/kinds.table" --json
expect_true "what other texts cost is expected" "j['unseen_distortion'] > j['distortion'] and j['without_distortion'] is None"
expect "a table without one kind" 0 "$KVCOBRA" solve "$dir/3.stats" --bpd 3 --without 2 --own-sources -o "$dir/kinds.table" --json
expect_true "that kind is measured" "j['without_distortion'] > 0 and j['unseen_distortion'] is None"
expect "a kind that is not there" 1 "$KVCOBRA" solve "$dir/3.stats" --bpd 3 --without 5 -o "$dir/never.table"
expect "calibrate on the license alone" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --own-share 0 --tokens 1024 --window 256 \
    -o "$dir/license.stats"
expect "a swap report" 0 "$KVCOBRA" solve "$dir/license.stats" --bpd 3 --swap-report "$dir/3.stats" --json
expect_true "the license transfers badly to other text" \
    "j['rows'][0]['left'] == 1 and j['rows'][-1]['taken'] == 'everything' and j['rows'][-1]['left'] < 0.95"
expect "calibrate without attention" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 1024 --window 256 \
    --metric mse -o "$dir/4.stats"

for budget in 2 3 4; do
    expect "solve $budget" 0 "$KVCOBRA" solve "$dir/1.stats" --bpd $budget -o "$dir/$budget.table"
done
expect "solve again, as JSON" 0 "$KVCOBRA" solve "$dir/1.stats" --bpd 3 -o "$dir/3b.table" --json
expect_json "solve --json" bpd_code
expect_true "the budget is kept" "0 < j['bpd_code'] <= 3"
expect "the same statistics give the same table" 0 cmp "$dir/3.table" "$dir/3b.table"
for method in paper-mse paper-kl; do
    expect "solve with $method" 0 "$KVCOBRA" solve "$dir/1.stats" --bpd 3 --method $method -o "$dir/$method.table"
done
expect "solve keys and values apart" 0 "$KVCOBRA" solve "$dir/1.stats" --k-bpd 3 --v-bpd 2 -o "$dir/apart.table"

for file in 1.stats 3.table paper-kl.table; do
    expect "inspect $file" 0 "$KVCOBRA" inspect "$dir/$file"
    expect "inspect $file as JSON" 0 "$KVCOBRA" inspect "$dir/$file" --json
    expect_json "inspect --json of $file"
done

evaluate() {
    "$KVCOBRA" eval "$model" --text "$dir/b.txt" --tokens 700 --window 256 "$@"
}
expect "eval" 0 evaluate --table "$dir/3.table"
expect "eval as JSON" 0 evaluate --table "$dir/3.table" --recent 0 --sinks 4 --json
expect_json "eval --json" ppl_exact ppl kl bpd_code bpd_true bytes tokens items
cp "$dir/out" "$dir/3.json"
expect_true "all windows, the last one shorter" \
    "(j['tokens'], j['windows'], j['last_window'], j['sinks'], j['recent']) == (700, 3, 188, 4, 0)"
expect_true "numbers are tokens x layers x heads x dimensions x sides" "j['numbers'] == 700 * 2 * 2 * 32 * 2"
expect_true "true bits are all bytes held" "math.isclose(j['bpd_true'], j['bytes'] * 8 / j['numbers'], rel_tol=1e-6)"
expect_true "the items are all bytes" "sum(i['bytes'] for i in j['items'].values()) == j['bytes']"
expect_true "the code bits are the budget" "0 < j['bpd_code'] <= 3"
expect_true "divergence is positive" "j['kl'] > 0"
expect_true "perplexities are means" \
    "math.isclose(j['ppl'], math.exp(j['nll'] / 697), rel_tol=1e-6)" # 700 tokens in 3 windows: 697 predictions
expect "eval of more bits" 0 evaluate --table "$dir/4.table" --recent 0 --sinks 4 --json
expect_true "more bits, less distortion" "j['kl'] < json.load(open('$dir/3.json'))['kl']"
expect "eval with everything recent" 0 evaluate --table "$dir/3.table" --recent 1000 --json
expect_true "with every token exact the models agree" "j['kl'] < 1e-4" # the error of binary16 in the cache
expect "eval of more tokens than the text has" 0 "$KVCOBRA" eval "$model" --text "$dir/b.txt" --table "$dir/3.table" \
    --tokens 1000000 --window 4096
grep -q "all of them are used" "$dir/err" && ok "eval says that the text is short" ||
    not_ok "eval says that the text is short"

narrow() {
    [ "$(awk 'length > 80' "$dir/out" | wc -l)" -eq 0 ] && ok "$1 fits 80 columns" || not_ok "$1 fits 80 columns"
}
evaluate_in_lab() {
    "$LAB" eval "$model" --text "$dir/b.txt" --tokens 700 --window 256 "$@"
}
# all formats but those that code 64 channels of a head together, of which this model has 32
expect_sentence "a format that does not fit" "32 channels per head do not divide into" evaluate_in_lab --comparator tcq-2 --recent 0
formats=q8_0,q4_0,q4_0-rot,kivi-2,kivi-4,kvquant-2,kvquant-3,kvquant-4,gear-2,quarot-3,quarot-4,turboquant-2,turboquant-3,turboquant-4
formats=$formats,svdq-2,kqsvd-2,kqsvd-3,kqsvd-4,oscar-2,kvarn-2,kvarn-3,kvarn-4
expect "eval of tables and formats" 0 evaluate_in_lab --table "$dir/2.table" --table "$dir/3.table" --comparator "$formats" \
    --stats "$dir/1.stats" --recent 0
narrow "the report"
expect "the same as JSON" 0 evaluate_in_lab --table "$dir/2.table" --table "$dir/3.table" --comparator "$formats" \
    --stats "$dir/1.stats" --recent 0 --json
expect_json "eval --comparator --json" rows ppl_exact sinks window
expect_true "every format has a row" "len(j['rows']) == 24"
expect_true "every row is finite and cites" \
    "all(r['kl'] >= 0 and (r['kind'] == 'table' or r['citation']) for r in j['rows'])"
expect_true "the table's row is its own evaluation" \
    "[r['kl'] for r in j['rows'] if r['name'] == '3'] == [json.load(open('$dir/3.json'))['kl']]"
expect "eval as the product reads" 0 evaluate_in_lab --comparator kivi-2,q4_0 --json

expect "eval of two texts and recent windows" 0 evaluate --text "$dir/a.txt" --table "$dir/2.table" --table "$dir/3.table" \
    --recent 0,128 --budgets
narrow "several texts"
grep -q "^mean, 128 recent" "$dir/out" && grep -q "to first" "$dir/out" && ok "it has means and budgets" ||
    not_ok "it has means and budgets"
expect "the same as JSON" 0 evaluate --text "$dir/a.txt" --table "$dir/2.table" --table "$dir/3.table" \
    --recent 0,128 --sinks 4 --budgets --json
expect_json "eval of texts --json" rows window sinks budgets
expect_true "each table, recent window and text has an interval around its KL" \
    "[(p['recent'], len(p['texts'])) for r in j['rows'] for p in r['recents']] == [(0, 2), (128, 2)] * 2 and all(
     t['kl_low'] <= t['kl'] <= t['kl_high'] for r in j['rows'] for p in r['recents'] for t in p['texts'])"
expect_true "a text has the KL that it has alone" \
    "[t['kl'] for r in j['rows'] if r['name'] == '3' for t in r['recents'][0]['texts']][0] == json.load(open('$dir/3.json'))['kl']"
expect_true "a recent window lowers the KL" "all(r['recents'][1]['kl'] < r['recents'][0]['kl'] for r in j['rows'])"
expect_true "the second table has the lower KL" "j['budgets'][0]['kl_ratio'] == 1 > j['budgets'][1]['kl_ratio'] > 0"

hide() {
    "$LAB" eval "$model" --text "$dir/a.txt" --table "$dir/3.table" --comparator q8_0 --recent 0 --retrieval "$@"
}
expect "eval of retrieval" 0 hide 21 --window 1000
narrow "retrieval"
expect "the same as JSON" 0 hide 21 --window 1000 --json
expect_json "eval --retrieval --json" rows keys window seed
cp "$dir/out" "$dir/keys"
expect_true "the exact model has a row" "[r['name'] for r in j['rows']] == ['exact', '3', 'q8_0']"
expect_true "every key is asked once, by length and by depth" \
    "all(r['asked'] == 21 == sum(x['asked'] for x in r['lengths']) == sum(x['asked'] for x in r['depths']) for r in j['rows'])"
expect_true "the interval is around the share" "all(0 <= r['low'] <= r['share'] <= r['high'] <= 1 for r in j['rows'])"
expect_true "the paired interval is around the difference" \
    "all(r['difference_low'] <= r['difference'] <= r['difference_high'] for r in j['rows'])"
expect "eval of four keys in one text" 0 hide 4 --lengths 1400 --together 2 --json
expect "eval of retrieval at two lengths" 0 hide 4 --lengths 300,600 --json
expect_true "the lengths take turns" "[(x['tokens'], x['asked']) for x in j['rows'][0]['lengths']] == [(300, 2), (600, 2)]"
ask() {
    "$LAB" eval "$model" --table "$dir/3.table" --recent 0 --ruler "$@"
}
expect "eval of synthetic tasks" 0 ask 1 --lengths 1400
narrow "synthetic tasks"
expect "some of them, as JSON" 0 ask 2 --lengths 700,800 --tasks variables,single --json
expect_json "eval --ruler --json" rows trials seed
expect_true "a task has a score and a paired interval; the mean follows" \
    "[x['task'] for x in j['rows'][1]['tasks']] == ['single', 'variables', 'mean'] * 2 and all(
     x['difference_low'] <= x['difference'] <= x['difference_high'] for x in j['rows'][1]['tasks'])"
expect "the same seed" 0 hide 21 --window 1000 --json
cp "$dir/out" "$dir/keys2"
expect "asks the same" 0 cmp "$dir/keys" "$dir/keys2"
continue_texts() {
    "$LAB" eval "$model" --text "$dir/b.txt" --table "$dir/4.table" --comparator turboquant-2 --recent 0 \
        --tokens 400 --window 100 --generate "$@"
}
expect "eval of generations" 0 continue_texts 40
narrow "generation"
expect "the same as JSON" 0 continue_texts 40 --json
expect_json "eval --generate --json" rows prompts prompt_tokens tokens
expect_true "four prompts, and the exact model agrees with itself" \
    "(j['prompts'], j['rows'][0]['alike'], j['rows'][0]['never_differ']) == (4, [40] * 4, 4)"
expect_true "the KL along the text has a part for 40 tokens" \
    "[(x['first'], x['last'], x['kl'] > 0) for r in j['rows'] for x in r['along']] == [
     (1, 40, False), (1, 40, True), (1, 40, True)]"
expect_true "quartiles are in order" \
    "all(r['alike_lower_quartile'] <= r['alike_median'] <= r['alike_upper_quartile'] <= 40 for r in j['rows'])"

hits() {
    "$KVCOBRA" eval "$model" --text "$dir/b.txt" --table "$dir/2.table" --hits --window 400 --tokens 900 "$@"
}
expect "eval of hits" 0 hits
narrow "hits"
expect "the same as JSON" 0 hits --json
expect_json "eval --hits --json" rows windows window
expect_true "two windows, half and all of what is published" \
    "(j['windows'], [r['found'] for r in j['rows']]) == (2, [128, 320] * 3)"
expect_true "all later positions are compared" "[r['compared'] for r in j['rows']] == [2 * 272, 2 * 80] * 3"
expect_true "by default a hit differs from a cold run" "all(r['kl'] > 1e-6 for r in j['rows'] if r['attention'] == 'default')"
expect_true "repeatable, by chunks, it does not" \
    "[(r['kl'], r['kl_largest'], r['same_next']) for r in j['rows'][4:]] == [(0, 0, 2 * 272), (0, 0, 2 * 80)]"
expect "hits of a window without chunks" 2 hits --window 100
expect "hits with a second table" 2 hits --table "$dir/4.table"
expect_sentence "hits of a short text" "$dir/b.txt" hits --window 4050

expect "generate exactly" 0 "$KVCOBRA" generate "$model" --prompt "To be" --tokens 16 --ignore-eos
cp "$dir/out" "$dir/exact.txt"
expect "generate exactly again" 0 "$KVCOBRA" generate "$model" --prompt "To be" --tokens 16 --ignore-eos --exact
cp "$dir/out" "$dir/exact2.txt"
expect "the likeliest tokens are the same" 0 cmp "$dir/exact.txt" "$dir/exact2.txt"
expect "generate with a table" 0 "$KVCOBRA" generate "$model" --prompt-file "$dir/b.txt" --tokens 8 --ignore-eos \
    --table "$dir/3.table" --json
expect_json "generate --json" text prompt_tokens matched_tokens generated_tokens first_token_seconds shared_bytes
expect_true "all were generated, none shared" "(j['generated_tokens'], j['shared_bytes']) == (8, 0)"
expect_true "the cache is smaller than binary16" "0 < j['bytes'] < j['bytes_binary16'] / 3"
expect "generate at a temperature" 0 "$KVCOBRA" generate "$model" --prompt x --tokens 16 --temperature 1 --seed 7 --json
expect_json "any bytes are JSON"
cp "$dir/out" "$dir/seven"
expect "the same seed" 0 "$KVCOBRA" generate "$model" --prompt x --tokens 16 --temperature 1 --seed 7 --json
expect_true "writes the same" "j['text'] == json.load(open('$dir/seven'))['text']"

finish
