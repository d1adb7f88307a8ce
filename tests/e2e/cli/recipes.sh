#!/bin/sh
# The recipes of docs/recipes/ run as they stand, those whose programs this machine has, on a tiny model; commands and options of
# all of them are checked by docs_check.py. Those with vLLM and transformers: client/python/tests/test_vllm_page.py.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4 CLUSTER=$5
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

ROOT=$(cd "$ROOT" && pwd)
mkdir "$dir/bin" "$dir/home"
mkdir -m 700 "$dir/run"
for program in "$KVCOBRA" "$KVCOBRAD" "$CLUSTER"; do
    ln -s "$(cd "$(dirname "$program")" && pwd)/$(basename "$program")" "$dir/bin/"
done
export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run" PATH="$dir/bin:$PATH" OPENBLAS_NUM_THREADS=2
unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME
trap '"$KVCOBRA" down >/dev/null 2>&1 || true; cleanup' EXIT

# run_recipe PAGE SED: the indented lines of the page as one script; $dir/out and $dir/err have what it printed
run_recipe() {
    sed -n 's/^       //p' "$ROOT/docs/recipes/$1" | sed "$2" >"$dir/script"
    mkdir "$dir/files"
    "$TINY_MODEL" "$dir/files/model.gguf"
    head -c 1500 "$ROOT/LICENSE" >"$dir/files/prompt.txt"
    # the script ends at the first command that fails, and what it started in the background with it
    expect "the commands of $1" 0 timeout 60 bash -c 'cd "$1" && set -e -o pipefail && trap "kill \$(jobs -p) 2>/dev/null; wait" EXIT && . "$2"' \
        bash "$dir/files" "$dir/script"
    rm -r "$dir/files"
}

if command -v redis-server >/dev/null && command -v openssl >/dev/null; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    run_recipe redis-fleet.md "s/6379/$port/g"
    grep -q "tokens, 0 of them found" "$dir/err" && ok "the first host finds nothing" || not_ok "the first host finds nothing"
    grep -q "tokens, [1-9][0-9]* of them found" "$dir/err" && ok "the second host finds the first one's prompt" ||
        not_ok "the second host finds the first one's prompt"
else
    skip "redis-fleet.md: redis-server or openssl is not installed"
fi

finish
