#!/bin/sh
# tools/unseen_kl.sh on a small model: texts made by arithmetic, a table of results, and a second run that makes nothing.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
head -c 60000 "$ROOT/DESIGN.md" >"$dir/a.txt"
unseen() {
    sh "$ROOT/tools/unseen_kl.sh" --model "$dir/model.gguf" --kvcobra "$KVCOBRA" --lab "$LAB" --dir "$dir/u" "$@"
}

expect "two kinds" 0 unseen --kinds "dialogue mathematics" --windows 1 --bits "2 3" --text "$dir/a.txt" --comparators q4_0
for row in "own-2 | 2." "own-3 | 3." "text-2 | 2." "text-3 | 3." "floor-3 | 3." "q4_0 | 4.5"; do
    grep -q "^| $row" "$dir/out" && ok "a row '$row'" || not_ok "a row '$row'"
done
grep -q "^own-3 over the floor: mean [0-9.]*, worst [0-9.]*$" "$dir/out" && ok "the floor" || not_ok "the floor"
cp "$dir/out" "$dir/first"
touch "$dir/mark"
expect "again" 0 unseen --kinds "dialogue mathematics" --windows 1 --bits "2 3" --text "$dir/a.txt" --comparators q4_0
cmp -s "$dir/first" "$dir/out" && ok "the same results" || not_ok "the same results"
[ -z "$(find "$dir/u" -type f -newer "$dir/mark")" ] && ok "nothing is made again" || not_ok "nothing is made again"
grep -q "^Problem 2\\. " "$dir/u/mathematics.judge.txt" && ok "mathematics" || not_ok "mathematics"
cmp -s "$dir/u/mathematics.judge.txt" "$dir/u/mathematics.floor.txt" && not_ok "another text" || ok "another text"

expect "no kind" 1 unseen --kinds poetry
grep -q "poetry is no kind" "$dir/err" && ok "it names the kind" || not_ok "it names the kind"
expect "no model" 1 sh "$ROOT/tools/unseen_kl.sh" --model "$dir/none.gguf" --kvcobra "$KVCOBRA"
expect "no value" 1 unseen --bits
finish
