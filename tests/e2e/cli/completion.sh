#!/bin/sh
# Completion of bash and fish, and zsh's syntax: every command and option of --help is there, and nothing else.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

folder=$(cd "$(dirname "$KVCOBRA")" && pwd)
daemon_folder=$(cd "$(dirname "$KVCOBRAD")" && pwd)
PATH=$folder:$daemon_folder:$folder/../lab:$PATH
export PATH
KVCOBRA=$folder/kvcobra KVCOBRAD=$daemon_folder/kvcobrad
commands=$("$KVCOBRA" --help | sed -n '/^Commands:$/,/^$/s/^  \([a-z-]*\) .*/\1/p')
python_commands=$("$KVCOBRA" --help | sed -n '/^Commands of the Python package:$/,/^$/s/^  \([a-z-]*\) .*/\1/p')
benches=$("$KVCOBRA" bench --help | sed -n '/^Measures on this machine:$/,/^$/s/^  \([a-z-]*\) .*/\1/p')
[ "$(echo "$commands" | wc -w)" -ge 15 ] && ok "there are commands" || not_ok "there are commands"
[ "$(echo "$benches" | wc -w)" -ge 1 ] && ok "there are benches" || not_ok "there are benches"

options_of() {
    "$KVCOBRA" "$@" --help | grep -oE -- '(^|[ ,])--[a-z][a-z0-9-]*' | tr -d ' ,' | sort -u
}

# Checks that every line of $dir/want is a line of $dir/out. Not for the end of a pipe, where counts are lost.
all_there() {
    missing=
    while read -r want; do
        grep -qxF -- "$want" "$dir/out" || missing="$missing $want"
    done <"$dir/want"
    [ -z "$missing" ] && ok "$1" || not_ok "$1: without$missing"
}

# complete SHELL WORD...: writes the shell's offers for the last word to $dir/out, one per line
complete_bash() {
    bash -c '. "$0/tools/completion/kvcobra.bash"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        if [[ $1 == kvcobrad ]]; then _kvcobrad; else _kvcobra; fi
        printf "%s\n" "${COMPREPLY[@]}"' "$ROOT" "$@" >"$dir/out" 2>"$dir/err"
}
complete_fish() {
    fish --no-config -c 'source $argv[1]; complete -C (string join " " -- $argv[2..])' \
        "$ROOT/tools/completion/kvcobra.fish" "$@" 2>"$dir/err" | cut -f 1 >"$dir/out"
}

# exactly NAME: the offers are the lines of $dir/want and nothing else; fish also offers files
exactly() {
    if [ "$shell" = fish ]; then
        all_there "$1"
    else
        sort -u "$dir/want" >"$dir/want.sorted"
        sort -u "$dir/out" | cmp -s - "$dir/want.sorted" && ok "$1" || not_ok "$1"
    fi
}

# a daemon with a table and a tenant
export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
    --spare-extents 0 --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
expect "a table" 0 "$KVCOBRA" table stage "$dir/3.table"
digest=$(sed -n 's/^staged \([0-9a-f]*\)$/\1/p' "$dir/out")
expect "an active table" 0 "$KVCOBRA" table activate "$dir/3.table"
head -c 1500 "$ROOT/LICENSE" >"$dir/prompt"
expect "a tenant" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt" --tokens 2 --share

# every "COMMAND/--OPTION" of the scripts with its values: they are in --help, and alike for all shells
sed -n "s/^    \([a-z]*\)\/\(--[a-z-]*\).*) echo \(.*\) ;;$/\1 \2 \3/p" "$ROOT/tools/completion/kvcobra.bash" >"$dir/values"
[ "$(wc -l <"$dir/values")" -ge 10 ] && ok "there are options with names as values" || not_ok "there are options with names as values"
while read -r command option values <&4; do
    if [ "$command" = kvcobrad ]; then
        "$KVCOBRAD" --help >"$dir/help"
    else
        "$KVCOBRA" "$command" --help >"$dir/help"
    fi
    sed -n "/^ .* $option=/,/^ \{6\}--usage/p" "$dir/help" | tr -s ' \n' ' ' >"$dir/flat"
    missing=
    for value in $values; do
        grep -qwF -- "$value" "$dir/flat" || missing="$missing $value"
    done
    [ -s "$dir/flat" ] && [ -z "$missing" ] && ok "--help has the values of $command $option" ||
        not_ok "--help has the values of $command $option: without$missing"
    grep -qF -- "echo $values ;;" "$ROOT/tools/completion/_kvcobra" && grep -qF -- "'$values'" "$ROOT/tools/completion/kvcobra.fish" &&
        ok "all shells have the values of $command $option" || not_ok "all shells have the values of $command $option"
done 4<"$dir/values"

for shell in bash fish; do
    command -v $shell >/dev/null 2>&1 || { skip "$shell is not here"; continue; }
    complete_$shell kvcobra ""
    printf "%s\n" $commands $python_commands >"$dir/want"
    all_there "$shell: commands"
    complete_$shell kvcobra bench ""
    echo "$benches" >"$dir/want"
    all_there "$shell: benches"
    complete_$shell kvcobra-lab bench ""
    printf '%s\n' attend engine generate service solve >"$dir/want"
    all_there "$shell: benches of the laboratory"
    complete_$shell kvcobra help ""
    printf "%s\n" $commands $python_commands >"$dir/want"
    all_there "$shell: help of commands"
    complete_$shell kvcobra dr
    [ "$(cat "$dir/out")" = drain ] && ok "$shell: a beginning" || not_ok "$shell: a beginning"
    complete_$shell kvcobra drain --ti
    [ "$(cat "$dir/out")" = --timeout ] && ok "$shell: an option's beginning" || not_ok "$shell: an option's beginning"
    cd "$dir" # for names of files
    complete_$shell kvcobra table ""
    printf '%s\n' list stage fetch shadow canary activate rollback retire >"$dir/want"
    exactly "$shell: actions of table"
    complete_$shell kvcobra model ""
    printf '%s\n' list alias unalias >"$dir/want"
    exactly "$shell: actions of model"
    complete_$shell kvcobra clients ""
    printf '%s\n' list disconnect >"$dir/want"
    exactly "$shell: actions of clients"
    while read -r command option values <&4; do
        if [ "$command" = kvcobrad ]; then
            complete_$shell kvcobrad "$option" ""
        else
            complete_$shell kvcobra "$command" "$option" ""
        fi
        echo "$values" | tr ' ' '\n' >"$dir/want"
        exactly "$shell: values of $command $option"
    done 4<"$dir/values"
    echo "$digest" | cut -c 1-12 >"$dir/want"
    complete_$shell kvcobra table activate ""
    exactly "$shell: digests of tables"
    complete_$shell kvcobra evict --table ""
    exactly "$shell: digests of tables as a value"
    echo "uid-$(id -u)" >"$dir/want"
    complete_$shell kvcobra quota ""
    exactly "$shell: tenants"
    complete_$shell kvcobra evict --tenant ""
    exactly "$shell: tenants as a value"
    "$KVCOBRAD" --help | grep -oE -- '(^|[ ,])--[a-z][a-z0-9-]*' | tr -d ' ,' | sort -u >"$dir/want"
    complete_$shell kvcobrad --
    all_there "$shell: options of kvcobrad"
    for command in $commands; do
        [ "$command" != bench ] || continue
        complete_$shell kvcobra "$command" --
        options_of "$command" >"$dir/want"
        all_there "$shell: options of $command"
    done
    for bench in $benches; do
        complete_$shell kvcobra bench "$bench" --
        options_of bench "$bench" >"$dir/want"
        all_there "$shell: options of bench $bench"
    done
done
if command -v zsh >/dev/null 2>&1; then
    expect "zsh: syntax" 0 zsh -n "$ROOT/tools/completion/_kvcobra"
else
    skip "zsh is not here"
fi

finish
