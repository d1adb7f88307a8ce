#!/bin/sh
# Statistics of several runs can be merged: in any order to the same bytes. An error names statistics that do not fit together.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
head -c 3500 "$ROOT/LICENSE" >"$dir/a.txt"
tail -c +3501 "$ROOT/LICENSE" | head -c 3500 >"$dir/b.txt"
tail -c 3500 "$ROOT/LICENSE" >"$dir/c.txt"

calibrate() {
    output=$1
    shift
    expect "calibrate $output" 0 "$KVCOBRA" calibrate "$model" --own-share 0 --tokens 3000 --window 256 -o "$dir/$output" "$@"
}
for text in a b c; do
    calibrate $text.stats --text "$dir/$text.txt" --samples 2000
    calibrate $text.moments --text "$dir/$text.txt" --moments-only
done

for kind in stats moments; do
    expect "merge three $kind" 0 "$KVCOBRA" merge "$dir/a.$kind" "$dir/b.$kind" "$dir/c.$kind" -o "$dir/abc.$kind" --json
    expect_json "merge --json" tokens samples
    # 3000 tokens take 12 windows, each with 252 tokens that are not sinks
    expect_true "all tokens of all files" "(j['tokens'], j['files']) == (3 * 12 * 252, 3)"
    expect "merge in another order" 0 "$KVCOBRA" merge "$dir/c.$kind" "$dir/a.$kind" "$dir/b.$kind" -o "$dir/cab.$kind"
    expect "the same bytes in any order" 0 cmp "$dir/abc.$kind" "$dir/cab.$kind"
done
expect "a table of the merged statistics" 0 "$KVCOBRA" solve "$dir/abc.stats" --bpd 3 -o "$dir/abc.table"
expect "its texts" 0 "$KVCOBRA" inspect "$dir/abc.table" --json
expect_true "a table names the texts behind it" \
    "sorted(t['sha256'] for t in j['provenance']['statistics']['texts']) == sorted(__import__('hashlib').sha256(open(f'$dir/{x}.txt', 'rb').read()).hexdigest() for x in 'abc')"
expect "a table of moments" 0 "$KVCOBRA" solve "$dir/abc.moments" --metric-from "$dir/abc.stats" --levels-from \
    "$dir/abc.table" --bpd 3 -o "$dir/moments.table" --json
expect_true "its distortion is estimated" "j['distortion'] is None and j['distortion_estimated'] > 0 and j['metric'] == 'output'"
expect "a table of moments alone" 0 "$KVCOBRA" solve "$dir/abc.moments" --bpd 3 -o "$dir/moments2.table"
expect "eval of a table of moments" 0 "$KVCOBRA" eval "$model" --table "$dir/moments.table" --text "$dir/a.txt" --tokens 500 \
    --window 250 --json
expect "a sweep needs vectors" 1 "$KVCOBRA" solve "$dir/abc.moments" --total-bpd 6 --sweep

refused() {
    name=$1 words=$2
    shift 2
    expect "$name is refused" 1 "$KVCOBRA" merge "$@" -o "$dir/never"
    grep -q "$words" "$dir/err" && ok "$name: the sentence names the reason" || not_ok "$name: the sentence names the reason"
    [ ! -e "$dir/never" ] && ok "$name: nothing is written" || not_ok "$name: nothing is written"
}
refused "the same file twice" "have the same contents, which would count twice" "$dir/a.stats" "$dir/a.stats"
refused "the same moments twice" "have the same contents, which would count twice" "$dir/a.moments" "$dir/b.moments" "$dir/a.moments"
calibrate longer.stats --text "$dir/a.txt" --tokens 2000 --samples 2000
refused "the same text twice" "was added before" "$dir/a.stats" "$dir/longer.stats"
calibrate seed.stats --text "$dir/b.txt" --seed 7 --samples 2000
expect "statistics of different seeds merge" 0 "$KVCOBRA" merge "$dir/a.stats" "$dir/seed.stats" -o "$dir/seeds.stats"
expect "a table of them" 0 "$KVCOBRA" solve "$dir/seeds.stats" --bpd 3 -o "$dir/seeds.table"
refused "the same text under two seeds" "was added before" "$dir/b.stats" "$dir/seed.stats"
calibrate attention.stats --text "$dir/b.txt" --metric attention --no-depth-weights --samples 2000
refused "another metric" "only one of the statistics has the attention metric" "$dir/a.stats" "$dir/attention.stats"
calibrate gradients.stats --text "$dir/b.txt" --metric output,fisher --samples 2000
refused "gradients in one of them" "only one of the statistics has gradients" "$dir/a.stats" "$dir/gradients.stats"
calibrate sinks.stats --text "$dir/b.txt" --sinks 2 --samples 2000
refused "other sinks" "different sinks: [24] and [24]" "$dir/a.stats" "$dir/sinks.stats"
refused "moments and statistics" "cannot be added" "$dir/a.stats" "$dir/b.moments"
refused "something else" "a.txt: not a statistics file" "$dir/b.stats" "$dir/a.txt"
expect "one file" 2 "$KVCOBRA" merge "$dir/a.stats" -o "$dir/never"
expect "no output" 2 "$KVCOBRA" merge "$dir/a.stats" "$dir/b.stats"
finish
