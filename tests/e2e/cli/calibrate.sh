#!/bin/sh
# What calibrate makes of texts: the model's own share beside them, a quick table, and bad input: too short, repeating itself, not
# UTF-8, one token again and again, a small source beside a large one. Bad input must not make tables worse.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
head -c 6000 "$ROOT/LICENSE" >"$dir/good.txt"
tail -c 4000 "$ROOT/LICENSE" >"$dir/other.txt"
head -c 4000 "$ROOT/CONVENTIONS.md" | iconv -c -f UTF-8 -t ASCII >"$dir/third.txt"

# calibrate OUTPUT OPTION...
calibrate() {
    output=$1
    shift
    "$KVCOBRA" calibrate "$model" --window 256 -o "$dir/$output" "$@"
}
noted() {
    grep -q -- "$1" "$dir/err" && ok "a sentence says: $1" || not_ok "no sentence says: $1"
}
same() {
    expect "$1" 0 cmp "$dir/$2" "$dir/$3"
}

# the model's own share
expect "text and the model's own" 0 calibrate share.stats --text "$dir/good.txt" --tokens 4096 --json
noted "the model writes 2048 tokens beside the text"
expect_true "a third of the tokens is the model's" "(j['tokens'], j['windows']) == (24 * 252, 24)"
expect "its sources" 0 "$KVCOBRA" inspect "$dir/share.stats"
[ "$(grep -c "model: [a-z]*, [0-9]* tokens" "$dir/out")" -eq 6 ] && ok "all six kinds are sources" || not_ok "six kinds"
expect "a table of them" 0 "$KVCOBRA" solve "$dir/share.stats" --bpd 3 -o "$dir/share.table" --json
expect_true "fits to what was left out" "j['unseen_distortion'] > 0"
expect "the same command again" 0 calibrate again.stats --text "$dir/good.txt" --tokens 4096
same "gives the same bytes" share.stats again.stats
expect "another share" 0 calibrate half.stats --text "$dir/good.txt" --tokens 2048 --own-share 50 --json
expect_true "is taken" "j['windows'] == 16"
expect "a share below one window" 0 calibrate small.stats --text "$dir/good.txt" --tokens 2048 --own-share 5 --json
expect_true "is a short window" "(j['windows'], j['tokens']) == (9, 8 * 252 + 107 - 4)"
expect "solve" 0 "$KVCOBRA" solve "$dir/share.stats" --bpd 3 -o "$dir/share.table" --json
expect_true "expects a KL" "0 < j['expected_kl'] < 10"
expect "with scalar levels" 0 "$KVCOBRA" solve "$dir/share.stats" --bpd 3 --trellis 0 -o "$dir/scalar.table" --json
expect_true "it expects none" "j['expected_kl'] is None"
expect "with bases in two blocks" 0 "$KVCOBRA" solve "$dir/share.stats" --bpd 3 --frame block -o "$dir/block.table"
expect "its provenance" 0 "$KVCOBRA" inspect "$dir/block.table" --json
expect_true "says so" "j['provenance']['options']['frame'] == 'block'"
expect "another frame is refused" 2 "$KVCOBRA" solve "$dir/share.stats" --bpd 3 --frame 2 -o "$dir/two.table"
expect "no share" 0 calibrate none.stats --text "$dir/good.txt" --tokens 2048 --own-share 0 --json
expect_true "is no text of the model" "j['windows'] == 8"
expect "its sources" 0 "$KVCOBRA" inspect "$dir/none.stats" --json
expect_true "are pieces of the text, with its digest's beginning" "(len({s['name'][:60] for s in j['sources']}),
    [s['name'][60:] for s in j['sources']]) == (1, ['0401', '0402', '0403', '0404'])"
expect "so many tokens instead of a share" 0 calibrate more.stats --text "$dir/good.txt" --tokens 2048 --generate 1024 --json
expect_true "are written" "j['windows'] == 12"
expect "another text" 0 calibrate other.stats --text "$dir/other.txt" --tokens 4096
expect "with a share of its own merges" 0 "$KVCOBRA" merge "$dir/share.stats" "$dir/other.stats" -o "$dir/both.stats"
expect "a third text" 0 calibrate third.stats --text "$dir/third.txt" --tokens 2048 --own-share 0
expect "makes nine sources" 0 "$KVCOBRA" merge "$dir/both.stats" "$dir/third.stats" -o "$dir/nine.stats"
expect "they" 0 "$KVCOBRA" inspect "$dir/nine.stats"
grep -q "8: small texts added up, [0-9]* tokens" "$dir/out" && ok "the smallest are one" || not_ok "the smallest are one"
expect "three texts and six kinds" 0 calibrate three.stats --text "$dir/good.txt" --text "$dir/other.txt" --text \
    "$dir/third.txt" --tokens 4096
expect "are at most eight sources" 0 "$KVCOBRA" inspect "$dir/three.stats"
grep -q "model, [0-9]* tokens" "$dir/out" && ok "the model's text is then one source" || not_ok "one source of the model"
expect "a share without texts" 2 calibrate x.stats --own-share 20
expect "a share and a number" 2 calibrate x.stats --text "$dir/good.txt" --own-share 20 --generate 1000
expect "a share of everything" 2 calibrate x.stats --text "$dir/good.txt" --own-share 100

# bad texts beside a good one: statistics, and so tables, are those without them
expect "a good text alone" 0 calibrate good.stats --text "$dir/good.txt" --tokens 4096 --own-share 25
head -c 100 "$ROOT/LICENSE" >"$dir/short.txt"
awk 'BEGIN { for (i = 0; i < 300; i++) print "The same sentence again." }' >"$dir/again.txt"
yes a | head -n 1000 >"$dir/lines.txt"
for bad in short again lines; do
    expect "with $bad.txt" 0 calibrate bad.stats --text "$dir/good.txt" --text "$dir/$bad.txt" --tokens 4096 --own-share 25
    noted "$dir/$bad.txt is not used: it "
    same "is as without it" good.stats bad.stats
    expect "and is solved" 0 "$KVCOBRA" solve "$dir/bad.stats" --bpd 3 -o "$dir/bad.table"
done
expect "the same text twice" 0 calibrate bad.stats --text "$dir/good.txt" --text "$dir/good.txt" --tokens 4096 --own-share 25
noted "$dir/good.txt repeats itself or another text"
same "counts once" good.stats bad.stats
expect "lines of a good text" 0 calibrate lines.stats --lines --text "$dir/good.txt" --tokens 2048
expect "with a thousand lines of one token" 0 calibrate bad.stats --lines --text "$dir/good.txt" --text "$dir/lines.txt" --tokens 2048
noted "$dir/lines.txt is not used"
same "is as without them" lines.stats bad.stats
expect "with a line again and again" 0 calibrate bad.stats --lines --text "$dir/good.txt" --text "$dir/again.txt" --tokens 2048
noted "$dir/again.txt repeats itself or another text: [0-9]* of its windows have nothing new"
cat "$dir/other.txt" "$dir/other.txt" "$dir/other.txt" >"$dir/copies.txt"
expect "a text in three copies" 0 calibrate copies.stats --text "$dir/copies.txt" --tokens 100000 --own-share 0 --json
noted "$dir/copies.txt repeats itself or another text"
expect_true "weighs as one" "4000 // 256 <= j['windows'] <= 4000 // 256 + 1"
printf 'caf\351 au lait\n%.0s' 1 2 3 4 5 6 7 8 9 >"$dir/latin1.txt"
expect_sentence "a text that is not UTF-8, beside a good one" "latin1.txt is not UTF-8" calibrate x.stats --text "$dir/good.txt" \
    --text "$dir/latin1.txt"
for bad in again lines; do
    expect_sentence "$bad.txt alone" "repeats itself" calibrate x.stats --text "$dir/$bad.txt"
done
expect_sentence "short.txt alone" "give more text or a smaller --window" calibrate x.stats --text "$dir/short.txt"
[ ! -e "$dir/x.stats" ] && ok "nothing is made of them" || not_ok "statistics of bad input"

# a source of a few hundred tokens beside a large one, measured on a third: at most 2 % worse than without it
head -c 300 "$dir/other.txt" >"$dir/tiny.txt"
# distortion_of NAME TEXT...: what a table of all texts but third.txt costs on third.txt, into $dir/NAME
distortion_of() {
    case=$1
    shift
    expect "$case: statistics" 0 calibrate "$case.stats" --own-share 0 --tokens 100000 --text "$dir/third.txt" "$@"
    expect "$case: its sources" 0 "$KVCOBRA" inspect "$dir/$case.stats" --json
    number=$(python3 - "$dir/out" "$dir/third.txt" <<'PY'
import hashlib, json, sys
digest = hashlib.sha256(open(sys.argv[2], "rb").read()).hexdigest()
sources = json.load(open(sys.argv[1]))["sources"]
print(1 + [s["name"] for s in sources].index(digest))
PY
    )
    expect "$case: a table without the third text" 0 "$KVCOBRA" solve "$dir/$case.stats" --bpd 3 --loading 1 --contrast 0 \
        --trellis 0 --without "$number" -o "$dir/$case.table" --json
    cp "$dir/out" "$dir/$case"
}
distortion_of large --text "$dir/good.txt"
distortion_of tiny --text "$dir/good.txt" --text "$dir/tiny.txt"
expect_true "a small source costs 2 % at most" \
    "j['without_distortion'] <= 1.02 * json.load(open('$dir/large'))['without_distortion']"

# --quick
command=$(readlink -f "$KVCOBRA")
(cd "$dir" && expect "quick" 0 "$command" calibrate --quick model.gguf && cp out out.quick && echo "$passed $failed" >counts)
read -r passed failed <"$dir/counts"
grep -q "model-quick.table: table [0-9a-f]*, " "$dir/out.quick" && grep -q "good for a first trial" "$dir/out.quick" &&
    ok "it says what the table is good for" || not_ok "it says what the table is good for"
expect "the table is that of solve" 0 "$KVCOBRA" solve "$dir/model-quick.stats" --bpd 3 -o "$dir/solved.table"
same "to the last bit" solved.table model-quick.table
expect "the table is usable" 0 "$KVCOBRA" eval "$model" --table "$dir/model-quick.table" --text "$dir/good.txt" --tokens 500 \
    --window 250
expect "quick with a text, names and bits" 0 "$KVCOBRA" calibrate --quick "$model" --text "$dir/good.txt" --tokens 1024 --bpd 2 \
    -o "$dir/q.stats" --json
expect_json "as JSON" table digest bpd_code statistics
expect_true "at these bits" "1.9 < j['bpd_code'] <= 2 and j['table'] == '$dir/q.table' and j['windows'] == 6"
expect "quick without vectors" 2 "$KVCOBRA" calibrate --quick "$model" --moments-only
expect "bits without quick" 2 "$KVCOBRA" calibrate "$model" --bpd 2 -o "$dir/x.stats"
cp "$model" "$dir/q.table"
expect_sentence "quick over the model" "is an input" "$KVCOBRA" calibrate --quick "$dir/q.table" -o "$dir/q.stats"
finish
