#!/bin/sh
# A service that heals itself, on a small model: a table for prose that predicts values from all heads of a layer, so that
# moments must be joint, and clients that send code. No request fails, and nothing is left.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
mkdir "$dir/tmp"
heal() {
    env TMPDIR="$dir/tmp" sh "$ROOT/tools/heal_demo.sh" --kvcobra "$KVCOBRA" --kvcobrad "$KVCOBRAD" "$@"
}

expect "heal" 0 heal --model "$dir/model.gguf" --predict layer --quick
for words in "== The drift" "live error of keys" "measured error of the canary" "clients encode 100 % of their new chunks" \
    "rolled back: the canary's measured error is above" "activated: new sequences use it" "== KL to the exact model" " 0 failed"; do
    grep -qF "$words" "$dir/out" "$dir/err" && ok "it says '$words'" || not_ok "it says '$words'"
done
grep -q "refitted  [0-9a-f]* .* lower" "$dir/out" && ok "the table was refitted" || not_ok "the table was refitted"
[ -z "$(ls -A "$dir/tmp")" ] && ok "no file stays" || not_ok "no file stays: $(ls -A "$dir/tmp")"
pgrep -f "$dir/tmp" >/dev/null && not_ok "no process stays" || ok "no process stays"

expect "no model" 1 heal --model "$dir/none.gguf"
grep -q "there is no model at $dir/none.gguf" "$dir/err" && ok "it names the model" || not_ok "it names the model"
expect "no text" 1 heal --model "$dir/model.gguf" --live "$dir/none.txt" --quick
grep -q "$dir/none.txt" "$dir/err" && ok "it names the text" || not_ok "it names the text"
expect "no option" 1 heal --frobnicate 1
[ -z "$(ls -A "$dir/tmp")" ] && ok "no file stays after a failure" || not_ok "no file stays after a failure"
finish
