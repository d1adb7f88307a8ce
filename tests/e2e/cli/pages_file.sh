#!/bin/sh
# kvcobra export and import: a prompt goes to another daemon in a file; damaged files, and files that are not for it.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
for budget in 2 3; do
    "$KVCOBRA" solve "$dir/m.stats" --bpd $budget -o "$dir/$budget.table" >/dev/null
done
head -c 1500 "$ROOT/LICENSE" >"$dir/prompt.txt"
(umask 077 && printf 'index %064d\nseal 1 %064d\n' 7 8 >"$dir/fleet.keys" && printf 'index %064d\nseal 1 %064d\n' 5 6 >"$dir/other.keys")

# start NAME KEYS TABLE [OPTION...]: a daemon in $dir/NAME; $daemon_pid is that of the last one
pids=
cleanup_all() {
    # shellcheck disable=SC2086 # several numbers
    kill -TERM $pids 2>/dev/null || true
    # shellcheck disable=SC2086
    wait $pids 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup_all EXIT
start() {
    host=$1 keys=$2 table=$3
    shift 3
    mkdir "$dir/$host"
    mkfifo "$dir/$host/ready"
    "$KVCOBRAD" --socket "$dir/$host/s" --operator-socket "$dir/$host/o" --pool-bytes 64M --arena-bytes 8M --log-level 5 \
        --key-file "$dir/$keys.keys" "$@" --ready-fd 3 3>"$dir/$host/ready" 2>"$dir/$host/log" &
    pids="$pids $!"
    [ "$(wc -c <"$dir/$host/ready")" -gt 0 ] && ok "$host is ready" || not_ok "$host is ready"
    expect "$host: stage" 0 "$KVCOBRA" table stage "$dir/$table.table" --socket "$dir/$host/o"
    expect "$host: activate" 0 "$KVCOBRA" table activate "$dir/$table.table" --socket "$dir/$host/o"
}
export_prompt() {
    "$KVCOBRA" export --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --socket "$dir/a/s" "$@"
}
found() { # NAME: tokens of the prompt that a daemon has
    "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --socket "$dir/$1/s" --tokens 1 --ignore-eos --json --quiet |
        sed -n 's/.*"matched_tokens": \([0-9]*\).*/\1/p'
}

start a fleet 3 --quota-bytes 48M
start b fleet 3 --quota-bytes 48M

expect_sentence "nothing is published" "'kvcobra lookup' says why" export_prompt -o "$dir/none.pages"
[ ! -e "$dir/none.pages" ] && ok "and no file is left" || not_ok "and no file is left"
expect "publish" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --socket "$dir/a/s" --tokens 4 --ignore-eos
expect "export" 0 export_prompt -o "$dir/prompt.pages"
grep -q "^[0-9]* pages with the first [0-9]* of [0-9]* tokens, .* in $dir/prompt.pages$" "$dir/out" && ok "it says how much" ||
    not_ok "it says how much"
expect "export as JSON" 0 export_prompt -o "$dir/prompt.pages" --json
expect_true "the same numbers" "(j['tokens'] == 64 * j['pages'] and j['prompt_tokens'] - j['tokens'] < 192 and
    j['bytes'] == __import__('os').stat(j['file']).st_size)"
pages=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pages"])' "$dir/out")

# another host
expect "import" 0 "$KVCOBRA" import "$dir/prompt.pages" --socket "$dir/b/s"
grep -q "^$pages of $pages pages were taken ($((64 * pages)) tokens)$" "$dir/out" && ok "all pages" || not_ok "all pages"
[ "$(found b)" -eq $((64 * pages)) ] && ok "the other daemon finds them" || not_ok "the other daemon finds them: $(found b)"
expect "import once more" 0 "$KVCOBRA" import - --socket "$dir/b/s" --json <"$dir/prompt.pages"
expect_true "they were there" "j['taken'] == j['present'] == $pages and j['tokens'] == 64 * $pages and j['ended_because'] == ''"

# by token ids; digits of a table say which model
short=$("$KVCOBRA" table list --json --socket "$dir/a/o" | sed -n 's/.*"digest": "\([0-9a-f]\{6\}\).*/\1/p' | head -n 1)
seq 1 200 >"$dir/tokens.txt"
expect_sentence "tokens without a page" "no page of this prompt" "$KVCOBRA" export --table "$short" \
    --tokens-file "$dir/tokens.txt" --socket "$dir/a/s" -o "$dir/none.pages"
expect "export by a table" 0 export_prompt --table "$short" -o "$dir/same.pages"
expect_sentence "with a salt" "no page of this prompt" export_prompt --salt x -o "$dir/none.pages"
expect_sentence "repeatable pages" "no page of this prompt" export_prompt --repeatable -o "$dir/none.pages"
expect_sentence "a table that is not there" "000000" export_prompt --table 000000 -o "$dir/none.pages"

# files that are damaged, or not for this daemon
bytes=$(wc -c <"$dir/prompt.pages")
head -c $((bytes / 2)) "$dir/prompt.pages" >"$dir/cut.pages"
expect "a cut file" 1 "$KVCOBRA" import "$dir/cut.pages" --socket "$dir/b/s"
grep -q "^[1-9][0-9]* of $pages pages were taken" "$dir/out" && grep -q "^kvcobra: $dir/cut.pages: the file was cut: it ends in page" "$dir/err" &&
    ok "what came before the cut" || not_ok "what came before the cut"
cp "$dir/prompt.pages" "$dir/changed.pages"
printf 'x' | dd of="$dir/changed.pages" bs=1 seek=$((bytes - 100)) conv=notrunc 2>/dev/null
expect "a changed file" 1 "$KVCOBRA" import "$dir/changed.pages" --socket "$dir/b/s" --json
expect_true "all but the last page" "j['taken'] == $pages - 1 and 'page $pages is damaged' in j['ended_because']"
expect_sentence "another file" "not a file of pages" "$KVCOBRA" import "$dir/3.table" --socket "$dir/b/s"
expect_sentence "an empty file" "not a file of pages" "$KVCOBRA" import /dev/null --socket "$dir/b/s"
expect_sentence "no file" "No such file" "$KVCOBRA" import "$dir/nothing" --socket "$dir/b/s"
expect_sentence "a folder" "is a folder" "$KVCOBRA" import "$dir" --socket "$dir/b/s"
start other other 3
expect_sentence "another fleet" "another key file" "$KVCOBRA" import "$dir/prompt.pages" --socket "$dir/other/s"
start table fleet 2
expect_sentence "another table" "is not active here: the active one of this model is" "$KVCOBRA" import "$dir/prompt.pages" \
    --socket "$dir/table/s"
start small fleet 3 --quota-bytes $((8388608 + 20000)) # of an arena and some pages
expect "no quota" 1 "$KVCOBRA" import "$dir/prompt.pages" --socket "$dir/small/s" --json
expect_true "some pages were taken" "0 < j['taken'] < $pages"
grep -q "the others stay private: .* bytes in use: .* raise the quota" "$dir/out" && ok "it says why" || not_ok "it says why"
expect "drain" 0 "$KVCOBRA" drain --socket "$dir/b/o" --yes
expect_sentence "a daemon that drains" "drain" "$KVCOBRA" import "$dir/prompt.pages" --socket "$dir/b/s"
expect_sentence "no daemon" "No such file or directory" "$KVCOBRA" import "$dir/prompt.pages" --socket "$dir/nothing"

# files that cannot be written
expect_sentence "into a folder that is not there" "No such file" export_prompt -o "$dir/no/prompt.pages"
expect_sentence "onto the prompt" "prompt.txt" export_prompt -o "$dir/prompt.txt"
expect_sentence "onto standard output" "-" export_prompt -o -
cp "$dir/prompt.pages" "$dir/before"
limited() { # as a full disk: a write fails after the first blocks
    (ulimit -f 1 && trap '' XFSZ && exec "$@")
}
expect_sentence "a disk that fills" "too large" limited "$KVCOBRA" export --model "$dir/model.gguf" --prompt-file "$dir/prompt.txt" \
    --socket "$dir/a/s" -o "$dir/prompt.pages"
cmp -s "$dir/before" "$dir/prompt.pages" && ok "the earlier file stays" || not_ok "the earlier file stays"
[ "$(find "$dir" -name '*.pages*' | wc -l)" -eq 4 ] && ok "nothing half-written is left" || not_ok "nothing half-written is left"

for wrong in "" "--model m --prompt-file p" "-o x" "-o x --tokens-file t" "-o x --prompt-file p" "-o x --model m --prompt-file p y"; do
    # shellcheck disable=SC2086
    expect "export $wrong" 2 "$KVCOBRA" export $wrong
done
expect "import" 2 "$KVCOBRA" import
expect "import of two files" 2 "$KVCOBRA" import a b
finish
