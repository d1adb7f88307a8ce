#!/bin/sh
# kvcobra inspect --html: the page loads nothing and has the numbers of --json. Where a browser is installed, it must show all
# of them and draw the page without errors, at three widths and on paper.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"
check=$(dirname "$0")/inspect_html_check.py

model=$dir/model.gguf
"$TINY_MODEL" "$model"
cp "$ROOT/LICENSE" "$dir/a.txt"
expect "calibrate" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 2048 --own-share 0 --window 256 -o "$dir/1.stats"
expect "calibrate for squared error" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 1024 --window 256 \
    --metric mse -o "$dir/mse.stats"
expect "calibrate moments" 0 "$KVCOBRA" calibrate "$model" --text "$dir/a.txt" --tokens 2048 --window 256 \
    --moments-only -o "$dir/1.moments"
expect "solve" 0 "$KVCOBRA" solve "$dir/1.stats" --bpd 3 -o "$dir/3.table" --json
cp "$dir/out" "$dir/solved.json"
expect "solve as the paper" 0 "$KVCOBRA" solve "$dir/1.stats" --bpd 3 --method paper-kl -o "$dir/paper.table"

browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name" || true)
done

# page WHAT ARGUMENTS...: writes WHAT.html and WHAT.json of the same inspection
page() {
    what=$1
    shift
    expect "inspect $what" 0 "$KVCOBRA" inspect "$@" --html "$dir/$what.html" --json
    cp "$dir/out" "$dir/$what.json"
    if python3 "$check" numbers "$dir/$what.html" "$dir/$what.json" 2>"$dir/err"; then
        ok "$what: loads nothing, and has the numbers of its JSON"
    else
        not_ok "$what: the page fails the check"
    fi
}

# shown WHAT: what a reader sees of a page
shown() {
    if [ -z "$browser" ]; then
        skip "$1 in a browser: no Chromium is installed"
    elif python3 "$check" shown "$browser" "$dir/$1.html" "$dir/$1.json" 2>"$dir/err"; then
        ok "$1 in a browser: every section, the numbers of its JSON, pictures"
    else
        not_ok "$1 in a browser"
    fi
}
page both "$dir/3.table" --stats "$dir/1.stats" --budgets 2,4
expect_true "nothing is missing" "j['unavailable'] == {}"
expect_true "the table says what other budgets would give" "(lambda x: x['at_bpd'] == [1.5, 2, 3, 4] and 0 < x['kl'] < 10 and
    all(a <= b for a, b in zip(x['at_bpd_distortion'], x['at_bpd_equal'])) and
    x['at_bpd_distortion'] == sorted(x['at_bpd_distortion'], reverse=True))(j['provenance']['expected'])"
expect_true "all methods at all budgets" "[(c['method'], c['budget']) for c in j['curves']] == [(m, b) for b in (2, 4)
    for m in ('bands', 'bands, equal budgets', 'dp', 'paper-kl', 'paper-mse')]"
expect_true "more bits, less distortion" "all(a['distortion'] > b['distortion'] for a, b in zip(j['curves'][:5], j['curves'][5:]))"
expect_true "equal budgets do not beat solved ones" \
    "all(j['curves'][i]['distortion'] <= j['curves'][i + 1]['distortion'] * 1.001 for i in (0, 5))"
expect_true "the distortions of the heads add up to what solve printed" \
    "math.isclose(sum(h['solved'] for h in j['distortion']), json.load(open('$dir/solved.json'))['distortion'], rel_tol=1e-6)"
expect_true "eigenvalues fall and sum to the variance" "all(s['eigenvalues'] == sorted(s['eigenvalues'], reverse=True) and
    math.isclose(sum(s['eigenvalues']), s['variance'], rel_tol=1e-6) for s in j['spectra'])"
expect_true "the items are all bytes" "all(b['codes'] + b['padding'] + b['headers'] + b['sinks'] + b['tail'] == b['total']
    for b in j['bytes'])"
expect_true "every coordinate is counted" "(sum(l['coordinates'] for l in j['levels']) ==
    sum(c['coordinates'] for c in j['codecs']))"
page default "$dir/3.table" --stats "$dir/1.stats"
expect_true "curves are drawn on request" "set(j['unavailable']) == {'curves'} and '--budgets' in j['unavailable']['curves']"

# what eval measured
expect "eval" 0 "$KVCOBRA" eval "$model" --table "$dir/3.table" --text "$dir/a.txt" --tokens 512 --window 256 --json
cp "$dir/out" "$dir/eval.json"
page measured "$dir/3.table" --eval "$dir/eval.json"
expect_true "the document has perplexity and KL of eval" "all(math.isclose(j['eval'][k], json.load(open('$dir/eval.json'))[k])
    for k in ('ppl_exact', 'ppl', 'kl', 'tokens', 'window'))"
expect "eval of two tables" 0 "$KVCOBRA" eval "$model" --table "$dir/paper.table" --table "$dir/3.table" --text "$dir/a.txt" \
    --tokens 512 --window 256 --json
cp "$dir/out" "$dir/evals.json"
expect "a picture of the first tiles and maps" 0 python3 "$ROOT/tools/inspect_picture.py" "$dir/measured.html" "$dir/measured.svg"
python3 - "$dir/measured.svg" <<'PY' && ok "it has five tiles and the maps of keys and values" || not_ok "it has five tiles and the maps of keys and values"
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
figures = [e.text for e in root.iter(svg + "text") if e.get("class") == "figure"]
titles = [e.text.split(":")[0] for e in root.iter(svg + "text") if e.get("class") == "title"]
maps = root.findall(svg + "svg")
sys.exit(not (len(figures) == 5 and all(figures) and titles == ["Keys", "Values"] and len(maps) >= 2 and all(len(m) > 4 for m in maps)))
PY
page compared "$dir/3.table" --eval "$dir/evals.json"
expect_true "the row of this table is taken" "math.isclose(j['eval']['kl'], json.load(open('$dir/eval.json'))['kl'], rel_tol=1e-6)"
expect "eval of keys alone" 0 "$KVCOBRA" eval "$model" --table "$dir/3.table" --text "$dir/a.txt" --tokens 512 --window 256 --side k --json
cp "$dir/out" "$dir/keys.json"
refused_eval() {
    expect_sentence "$1" "$2" "$KVCOBRA" inspect "$dir/$3" --eval "$dir/$4" --html "$dir/no.html"
}
refused_eval "an eval of keys alone" "without --side and --layers" 3.table keys.json
refused_eval "an eval of another table" "eval.json has no result of table" paper.table eval.json
refused_eval "statistics for an eval" "1.stats has no result" 3.table 1.stats
refused_eval "no eval" "$dir/none.json" 3.table none.json
refused_eval "an eval of statistics" "--eval is for tables" 1.stats eval.json
for change in '"kl": "high"' '"kl": 1e999' '"ppl": -1' '"ppl": null' '"tokens": 0'; do
    python3 -c 'import json, sys
document = json.load(open(sys.argv[1])) | {sys.argv[2].split(chr(34))[1]: None}
print(json.dumps(document)[:-1] + "," + sys.argv[2] + "}")' "$dir/eval.json" "$change" >"$dir/changed.json"
    refused_eval "an eval with $change" "changed.json" 3.table changed.json
done
expect "an eval for nothing" 2 "$KVCOBRA" inspect "$dir/3.table" --eval "$dir/eval.json"

page table "$dir/3.table"
expect_true "a table alone names the parts that it lacks" "set(j['unavailable']) == {'spectra', 'gaussianity', 'curves', 'distortion'}"
page paper "$dir/paper.table" --stats "$dir/1.stats" --budgets none
expect_true "without budgets there are no curves, but the distortion of the table" "set(j['unavailable']) == {'curves'} and len(j['distortion']) == 8"
page stats "$dir/1.stats" --budgets 3
expect_true "statistics alone have a distortion at a budget" "set(j['unavailable']) == {'table'} and j['distortion_budget'] == 3"
page mse "$dir/mse.stats" --budgets 3
expect_true "a method that cannot be solved says why" \
    "[c['method'] for c in j['curves'] if 'queries' in c.get('unavailable', '')] == ['paper-kl']"
page moments "$dir/1.moments"
expect_true "moments have spectra only" "set(j['unavailable']) == {'table', 'gaussianity', 'curves', 'distortion'}"
expect "a page of statistics has no such picture" 1 python3 "$ROOT/tools/inspect_picture.py" "$dir/stats.html" "$dir/stats.svg"
grep -q "the page is not one of a table" "$dir/err" && ok "the sentence says why" || not_ok "the sentence says why"

expect "numbers alone" 0 "$KVCOBRA" inspect "$dir/3.table" --stats "$dir/1.stats" --json
expect_true "have no curves without --budgets" "'curves' not in j and set(j['unavailable']) == {'curves'} and len(j['distortion']) == 8"
expect "numbers at a budget" 0 "$KVCOBRA" inspect "$dir/1.stats" --json --budgets 2
expect_true "the text is four sources" "[(s['kind'], 4 * s['tokens']) for s in j['sources']] == 4 * [('text', j['tokens'])]"
expect_true "have curves of that budget" "{c['budget'] for c in j['curves']} == {2} and 'curves' not in j['unavailable']"
expect "budgets of nothing" 2 "$KVCOBRA" inspect "$dir/1.stats" --budgets 2
expect "budgets must ascend" 2 "$KVCOBRA" inspect "$dir/1.stats" --budgets 2,1 --html "$dir/no.html"
expect "budgets are numbers" 2 "$KVCOBRA" inspect "$dir/1.stats" --budgets 1,,2 --html "$dir/no.html"
expect_sentence "statistics of statistics" "--stats" "$KVCOBRA" inspect "$dir/1.stats" --stats "$dir/1.stats"
expect_sentence "a folder that is not there" "$dir/none/x.html" "$KVCOBRA" inspect "$dir/3.table" --html "$dir/none/x.html"
[ ! -e "$dir/no.html" ] && ok "no page of a usage error" || not_ok "no page of a usage error"

for what in both measured table stats mse moments; do
    shown $what
done
# shot NAME WIDTH HEIGHT: writes a screenshot and the errors of the browser
shot() {
    if [ -z "$browser" ]; then
        skip "$1 at $2 x $3: no Chromium is installed"
        return
    fi
    # --no-sandbox: tests run as root in containers, where the sandbox does not start; the page is our own
    if "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --force-device-scale-factor=1 \
        --enable-logging=stderr --user-data-dir="$dir/browser" --window-size="$2,$3" --screenshot="$dir/$1.png" \
        "file://$dir/$1.html" >"$dir/out" 2>"$dir/err" && ! grep -q CONSOLE "$dir/err" &&
        python3 "$check" picture "$dir/$1.png" "$2" "$3" 2>>"$dir/err"; then
        ok "$1 at $2 x $3 in $(basename "$browser"): drawn without errors"
    else
        not_ok "$1 at $2 x $3 in $(basename "$browser")"
    fi
}
if [ -z "$browser" ]; then
    skip "nothing is cut at 400, 768 and 1280 pixels: no Chromium is installed"
elif python3 "$(dirname "$0")/page_widths.py" "$browser" "$dir" "$dir/both.html" "$dir/measured.html" "$dir/stats.html" >"$dir/out" 2>"$dir/err"; then
    ok "nothing is cut at 400, 768 and 1280 pixels"
else
    not_ok "nothing is cut at 400, 768 and 1280 pixels"
fi
# a page of a model of this size is a few sheets of paper
if [ -z "$browser" ]; then
    skip "on paper: no Chromium is installed"
else
    expect "on paper" 0 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$dir/browser" \
        --print-to-pdf="$dir/both.pdf" "file://$dir/both.html"
    sheets=$(grep -ac '/Type */Page$\|/Type */Page[^s]' "$dir/both.pdf" || true)
    [ "$sheets" -ge 3 ] && [ "$sheets" -le 12 ] && ok "on $sheets sheets" || not_ok "on $sheets sheets"
fi
shot both 1200 4000
shot table 390 3000
shot stats 1200 3000
finish
