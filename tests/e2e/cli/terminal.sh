#!/bin/sh
# Every command on terminals of 60, 80 and 200 columns: no row is wider than the terminal.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

check=$(dirname "$0")/terminal_check.py
export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
    --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
expect "signals end top" 0 python3 "$(dirname "$0")/top_check.py" "$KVCOBRA"
"$KVCOBRA" table stage "$dir/3.table" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" >/dev/null
"$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 --ignore-eos >/dev/null 2>&1

{
    echo "'$KVCOBRA' --help"
    "$KVCOBRA" --help | sed -n "s|^  \([a-z][a-z-]*\)  .*|'$KVCOBRA' \1 --help|p"
    echo "'$LAB' --help"
    "$LAB" --help | sed -n "s|^  \([a-z][a-z-]*\)  .*|'$LAB' \1 --help|p"
    for words in status "status --json" "table list" "model list" "quota uid-4242" clients ping doctor "monitor --last 9 --count 3" \
        "evict --tenant stranger-4711" "inspect '$dir/3.table'" "inspect '$dir/m.stats'" "table stage '$dir/m.stats'" \
        "generate '$dir/model.gguf' --prompt x --share --tokens 4 --ignore-eos"; do
        echo "'$KVCOBRA' $words"
    done
} >"$dir/lines"
for columns in 60 80 200; do
    expect "all commands in $columns columns" 0 python3 "$check" $columns "$dir/lines"
done
[ "$(wc -l <"$dir/lines")" -gt 30 ] && ok "all commands" || not_ok "all commands"
# wrong command lines: a sentence of an option, of an argument, of getopt, and of the command's own
{
    echo "'$LAB' bench attend --tokens 99"
    echo "'$KVCOBRA' quota uid-0 --max 16GB-and-some-more-letters-than-a-size-has"
    echo "'$KVCOBRA' table activat 3.table"
    echo "'$KVCOBRA' quota --an-option-that-quota-does-not-have-and-never-had 4"
    echo "'$KVCOBRA' solve m.stats --method a-method-that-no-paper-has-published-yet -o x"
    echo "'$KVCOBRA' calibrat"
    echo "'$KVCOBRA' quota"
} >"$dir/wrong"
for columns in 60 80 200; do
    expect "wrong command lines in $columns columns" 0 python3 "$check" $columns "$dir/wrong" 2
done
expect "no action" 2 "$KVCOBRA" quota
printf "kvcobra quota: a tenant is needed\nTry 'kvcobra quota --help'.\n" | cmp -s - "$dir/err" && ok "as all sentences" || not_ok "as all sentences"
# reports of eval with many columns
{
    evaluate="'$LAB' eval '$dir/model.gguf' --quiet --table '$dir/3.table' --recent 0"
    echo "$evaluate,128 --text '$ROOT/LICENSE' --text '$ROOT/README.md' --tokens 256 --window 128 --comparator kivi-4"
    echo "$evaluate --table '$dir/3.table' --text '$ROOT/LICENSE' --tokens 256 --window 128 --budgets"
    echo "$evaluate --text '$ROOT/LICENSE' --retrieval 2 --lengths 300,400"
    echo "$evaluate --text '$ROOT/LICENSE' --generate 4 --window 100 --tokens 100"
    echo "$evaluate --ruler 1 --lengths 600 --tasks single,variables"
} >"$dir/reports"
for columns in 80 200; do
    expect "reports of eval in $columns columns" 0 python3 "$check" $columns "$dir/reports"
done
# slow ones once
{
    echo "'$KVCOBRA' solve '$dir/m.stats' --bpd 3 -o '$dir/4.table'"
    echo "'$KVCOBRA' eval '$dir/model.gguf' --table '$dir/3.table' --text '$ROOT/LICENSE' --tokens 256 --window 128"
    cat "$dir/reports"
} >"$dir/lines"
expect "slow commands in 60 columns" 0 python3 "$check" 60 "$dir/lines"
finish
