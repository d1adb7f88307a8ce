#!/bin/sh
# Command lines that make no sense exit with 2 and do nothing; help exits with 0.
KVCOBRA=$1
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

expect "help" 0 "$KVCOBRA" --help
grep -q '^Usage: kvcobra COMMAND' "$dir/out" && ok "help is on stdout" || not_ok "help is on stdout"
sed -n '/^Commands:$/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p' "$dir/out" >"$dir/commands"
sed -n '/^Commands of the Python package:$/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p' "$dir/out" >"$dir/python-commands"
for command in calibrate solve inspect eval generate table model model-id status bench demo; do
    grep -qx "$command" "$dir/commands" && ok "help lists $command" || not_ok "help lists $command"
done
expect "help without a command is help" 0 "$KVCOBRA" help
expect "version" 0 "$KVCOBRA" --version
grep -qx 'kvcobra [0-9]*\.[0-9]*\.[0-9]*' "$dir/out" && ok "the version is a number" || not_ok "the version is a number"

while read -r command; do
    expect "help $command" 0 "$KVCOBRA" help "$command"
    grep -q "^Usage: kvcobra $command" "$dir/out" && ok "help of $command has its name" ||
        not_ok "help of $command has its name"
    expect "$command -h" 0 "$KVCOBRA" "$command" -h
    grep -q "^Usage: kvcobra $command" "$dir/out" && ok "$command -h is its help" || not_ok "$command -h is its help"
    expect "$command --version" 0 "$KVCOBRA" "$command" --version
    expect "$command with an unknown option" 2 "$KVCOBRA" "$command" --no-such-option
    [ ! -s "$dir/out" ] && ok "$command: nothing on stdout" || not_ok "$command: nothing on stdout"
done <"$dir/commands"

# commands that are programs of the Python package
[ -s "$dir/python-commands" ] && ok "help lists commands of the Python package" || not_ok "help lists commands of the Python package"
mkdir "$dir/bin"
while read -r command; do
    expect_sentence "$command without its package" "install the Python package kvcobra" env PATH=/usr/bin:/bin "$KVCOBRA" "$command" x
    printf '#!/bin/sh\nprintf "%%s|" "$@"\nexit 3\n' >"$dir/bin/kvcobra-$command"
    chmod 755 "$dir/bin/kvcobra-$command"
    expect "$command runs kvcobra-$command" 3 env PATH="$dir/bin:/usr/bin:/bin" "$KVCOBRA" "$command" "a b" --c
    [ "$(cat "$dir/out")" = "a b|--c|" ] && ok "its arguments" || not_ok "its arguments: $(cat "$dir/out")"
    expect "help of $command" 3 env PATH="$dir/bin:/usr/bin:/bin" "$KVCOBRA" help "$command"
    [ "$(cat "$dir/out")" = "--help|" ] && ok "is its program's" || not_ok "is its program's: $(cat "$dir/out")"
done <"$dir/python-commands"

expect_sentence "bench serve without its package" "install the Python package kvcobra" env PATH=/usr/bin:/bin "$KVCOBRA" bench serve
cp "$dir/bin/kvcobra-llama-proxy" "$dir/bin/kvcobra-bench-serve"
expect "bench serve runs kvcobra-bench-serve" 3 env PATH="$dir/bin:/usr/bin:/bin" "$KVCOBRA" bench serve --url "a b"
[ "$(cat "$dir/out")" = "--url|a b|" ] && ok "its arguments" || not_ok "its arguments: $(cat "$dir/out")"

expect "no command" 2 "$KVCOBRA"
expect "option before the command" 2 "$KVCOBRA" --json eval
expect "help of two commands" 2 "$KVCOBRA" help eval solve
expect "help of an unknown command" 2 "$KVCOBRA" help nonsense
expect "unknown command" 2 "$KVCOBRA" calibrat
grep -qF "did you mean 'kvcobra calibrate'?" "$dir/err" && ok "the nearest is suggested" ||
    not_ok "the nearest is suggested"
expect "unknown bench" 2 "$KVCOBRA" bench nonsense
expect "bench without a name" 2 "$KVCOBRA" bench

# the sentence names what was said, and what can be said
unknown_word() {
    known=$1
    shift
    expect "an unknown word: $*" 2 "$KVCOBRA" "$@"
    grep -q "nonsense" "$dir/err" && grep -qF "$known" "$dir/err" && ok "$*: the sentence has both" ||
        not_ok "$*: the sentence has both: $(head -1 "$dir/err")"
}
unknown_word "list, disconnect" clients nonsense
unknown_word "status, write, resume, drop" tier nonsense
unknown_word "list, stage, fetch, shadow, canary, activate, rollback, retire" table nonsense
unknown_word "list, alias, unalias" model nonsense
unknown_word "auto, refit or solve" recalibrate m --stage nonsense

expect "calibrate without a model" 2 "$KVCOBRA" calibrate -o x
expect "calibrate: moments without vectors have no samples" 2 "$KVCOBRA" calibrate x.gguf --moments-only --samples 9 -o x
expect "calibrate: a list of metrics that ends in a comma" 2 "$KVCOBRA" calibrate x.gguf --metric output, -o x
for number in nan inf 1e99 -1 0 '' 2x; do
    expect "solve with $number bits" 2 "$KVCOBRA" solve x.stats --bpd "$number" -o x
done
for number in -1 1.5 99999999999999999999 '' 7x; do
    expect "solve with a seed of $number" 2 "$KVCOBRA" solve x.stats --bpd 2 --seed "$number" -o x
    expect "calibrate on $number tokens" 2 "$KVCOBRA" calibrate x.gguf --tokens "$number" -o x
done
expect "solve without statistics" 2 "$KVCOBRA" solve --bpd 3 -o x
expect "solve without a budget" 2 "$KVCOBRA" solve x.stats -o x
expect "solve with an unknown method" 2 "$KVCOBRA" solve x.stats --bpd 3 --method nonsense -o x
expect "a swap report makes no table" 2 "$KVCOBRA" solve x.stats --bpd 3 --swap-report y.stats -o x
expect "a swap report or a sweep" 2 "$KVCOBRA" solve x.stats --total-bpd 6 --sweep --swap-report y.stats
expect "a swap report of the paper's method" 2 "$KVCOBRA" solve x.stats --bpd 3 --swap-report y.stats --method paper-kl
expect "equal budgets of the paper's method" 2 "$KVCOBRA" solve x.stats --bpd 3 --method paper-kl --equal -o x.table
expect "equal budgets of a sweep" 2 "$KVCOBRA" solve x.stats --total-bpd 6 --sweep --equal
expect "the paper's method leaves no source out" 2 "$KVCOBRA" solve x.stats --bpd 3 --method paper-kl --own-sources -o x.table
expect "a swap report without a source" 2 "$KVCOBRA" solve x.stats --bpd 3 --swap-report y.stats --without 1
expect "inspect without a file" 2 "$KVCOBRA" inspect

expect "eval without a table" 2 "$KVCOBRA" eval x.gguf --text x.txt
expect "eval without a text" 2 "$KVCOBRA" eval x.gguf --table x.table
expect "eval with a window of one" 2 "$KVCOBRA" eval x.gguf --table x --text x --window 1
expect "eval with a negative number" 2 "$KVCOBRA" eval x.gguf --table x --text x --recent -1
expect "eval with words for a number" 2 "$KVCOBRA" eval x.gguf --table x --text x --tokens many
expect "eval with an unknown format" 2 "$LAB" eval x.gguf --text x --comparator q4_0,zip
expect "eval with a calibrated format and no statistics" 2 "$LAB" eval x.gguf --text x --comparator svdq-2
expect "eval with unused statistics" 2 "$LAB" eval x.gguf --text x --comparator q4_0 --stats x
expect "eval of quartiles beside another format" 2 "$LAB" eval x.gguf --table x --text x --comparator q4_0 --quartiles
expect "eval of keys and generations" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --generate 4
expect "eval of keys with tokens" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --tokens 100
expect "eval of keys together that are no whole texts" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --together 3
expect "eval with --together and no keys" 2 "$LAB" eval x.gguf --table x --text x --together 3
expect "eval of 0 keys" 2 "$LAB" eval x.gguf --table x --text x --retrieval 0
expect "eval with a seed without keys" 2 "$LAB" eval x.gguf --table x --text x --seed 1
expect "eval with a seed that JSON cannot have" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --seed 9223372036854775808
expect "eval of quartiles of keys" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --quartiles
expect "eval of keys in two texts" 2 "$LAB" eval x.gguf --table x --text x --text y --retrieval 4
expect "eval of generations with two recent windows" 2 "$KVCOBRA" eval x.gguf --table x --text x --generate 4 --recent 0,128
expect "eval with an empty recent window" 2 "$KVCOBRA" eval x.gguf --table x --text x --recent 0,,128
expect "eval with five recent windows" 2 "$KVCOBRA" eval x.gguf --table x --text x --recent 0,1,2,3,4
expect "eval of budgets of one table" 2 "$KVCOBRA" eval x.gguf --table x --text x --budgets
expect "eval with lengths without trials" 2 "$LAB" eval x.gguf --table x --text x --lengths 100
expect "eval with lengths and a window" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --lengths 100 --window 100
expect "eval of tasks with a text" 2 "$LAB" eval x.gguf --table x --text x --ruler 4
expect "eval of an unknown task" 2 "$LAB" eval x.gguf --table x --ruler 4 --tasks single,needle
expect "eval with tasks alone" 2 "$LAB" eval x.gguf --table x --text x --tasks single
expect "eval of keys and tasks" 2 "$LAB" eval x.gguf --table x --text x --retrieval 4 --ruler 4
expect "eval of keys after RoPE and a format" 2 "$LAB" eval x.gguf --table x --text x --post-rope y --comparator q4_0
expect "eval of keys after RoPE in two texts" 2 "$LAB" eval x.gguf --table x --text x --text y --post-rope z
for option in "--comparator q4_0" "--retrieval 4" "--ruler 4" "--post-rope y"; do
    # shellcheck disable=SC2086
    expect "kvcobra has no $option" 2 "$KVCOBRA" eval x.gguf --table x --text x $option
done
expect "eval of two models" 2 "$KVCOBRA" eval x.gguf y.gguf --table x --text x

expect "generate without a prompt" 2 "$KVCOBRA" generate x.gguf
expect "generate with two prompts" 2 "$KVCOBRA" generate x.gguf --prompt a --prompt-file b
expect "generate with two caches" 2 "$KVCOBRA" generate x.gguf --prompt a --table b --socket c
expect "generate exact and compressed" 2 "$KVCOBRA" generate x.gguf --prompt a --table b --exact
expect "generate no tokens" 2 "$KVCOBRA" generate x.gguf --prompt a --tokens 0
expect "generate below absolute zero" 2 "$KVCOBRA" generate x.gguf --prompt a --temperature -1

expect "table without an action" 2 "$KVCOBRA" table --socket x
expect "evict with five digits of a digest" 2 "$KVCOBRA" evict --table 12345
expect "evict with a name for a digest" 2 "$KVCOBRA" evict --table model-3.table
expect "recalibrate with a table that is not tried" 2 "$KVCOBRA" recalibrate --table x
expect "recalibrate with a table and moments" 2 "$KVCOBRA" recalibrate --table x --canary-tokens 9 --min-tokens 5
expect "solve: times of a sweep" 2 "$KVCOBRA" solve x.stats --total-bpd 6 --sweep --timing
expect "recalibrate with a table and a stage" 2 "$KVCOBRA" recalibrate --table x --canary-tokens 9 --stage refit
expect "recalibrate with five digits of a digest" 2 "$KVCOBRA" recalibrate --model 12345
expect "table with an unknown action" 2 "$KVCOBRA" table retire --socket x
expect "table stage of nothing" 2 "$KVCOBRA" table stage --socket x
expect "table list of something" 2 "$KVCOBRA" table list x --socket x
expect "status of something" 2 "$KVCOBRA" status x
expect "top as JSON" 2 "$KVCOBRA" top --json
expect "demo as JSON" 2 "$KVCOBRA" demo --json
expect "help of demo" 0 "$KVCOBRA" demo --help
grep -qE -- '--(json|quiet)' "$dir/out" && not_ok "demo offers what it does not do" || ok "demo offers what it does"
expect "demo of two models" 2 "$KVCOBRA" demo a b

# a format of --help without room for words is not taken: glibc would print for ever
for format in rmargin=1 rmargin=20 opt-doc-col=90; do
    expect "--help with $format" 0 timeout 20 env ARGP_HELP_FMT="$format" "$KVCOBRA" calibrate --help
    grep -q "^  -o, --output=STATS" "$dir/out" && ok "has the options" || not_ok "has the options"
done
finish
