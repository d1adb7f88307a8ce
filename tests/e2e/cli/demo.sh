#!/bin/sh
# The demonstration on a small model: all steps work, and no process or file of the demonstration is left.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
mkdir "$dir/tmp"
demo() {
    env TMPDIR="$dir/tmp" "$KVCOBRA" demo "$dir/model.gguf" --quick --daemon "$KVCOBRAD" "$@"
}

expect "demo" 0 demo --text "$ROOT/LICENSE" --eval-text "$ROOT/README.md"
for words in "exact, binary16" "4 bits" "process A" "active" "All of its 128 tokens were written" "--question 'What is this text about?" "A found 0 of " " answers after " "B answered " " earlier than A." "4096 tokens" "is removed"; do
    grep -qF -- "$words" "$dir/out" && ok "it says '$words'" || not_ok "it says '$words'"
done
grep -q "^B found [1-9][0-9]* of [0-9]* tokens" "$dir/out" && ok "B found A's pages" || not_ok "B found A's pages"
[ "$(sed -n 's/^A found.* after [^:]*: //p' "$dir/out")" = "$(sed -n 's/^B found.* after [^:]*: //p' "$dir/out")" ] &&
    ok "both answer the same" || not_ok "both answer the same"
[ -z "$(ls -A "$dir/tmp")" ] && ok "no file stays" || not_ok "no file stays: $(ls -A "$dir/tmp")"
pgrep -f "$dir/tmp" >/dev/null && not_ok "no process stays" || ok "no process stays"

expect_sentence "no text" "$dir/none.txt" demo --text "$dir/none.txt" --eval-text "$ROOT/README.md"
expect_sentence "no daemon" "$dir/none" env TMPDIR="$dir/tmp" "$KVCOBRA" demo "$dir/model.gguf" --daemon "$dir/none"

# the demonstration is stopped in the middle
got=0
python3 - "$dir/tmp" "$KVCOBRA" demo "$dir/model.gguf" --daemon "$KVCOBRAD" --text "$ROOT/LICENSE" \
    --eval-text "$ROOT/README.md" >"$dir/out" 2>"$dir/err" <<'PY' || got=$?
import os, signal, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env={**os.environ, "TMPDIR": sys.argv[1]})
for line in child.stdout:
    if line.startswith(b"$ kvcobra calibrate"):
        break
child.send_signal(signal.SIGINT)
child.stdout.read()
sys.exit(0 if child.wait(timeout=300) == 1 else "it did not stop with exit status 1")
PY
[ "$got" -eq 0 ] && ok "Ctrl-C stops it" || not_ok "Ctrl-C stops it"
grep -q "kvcobra: stopped" "$dir/err" && ok "stderr says that it stopped" || not_ok "stderr says that it stopped"
[ -z "$(ls -A "$dir/tmp")" ] && ok "and no file stays" || not_ok "and no file stays: $(ls -A "$dir/tmp")"
pgrep -f "$dir/tmp" >/dev/null && not_ok "and no process stays" || ok "and no process stays"
expect_sentence "both texts from standard input" "which is read once" "$KVCOBRA" demo "$dir/model.gguf" --text - --eval-text -
finish
