#!/bin/sh
# Completion of bash, zsh and fish: what --help lists is offered, and nothing else; names come from a daemon.
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

# options_of PROGRAM WORD...: those at the beginning of a line, since texts name options of other programs, too
options_of() {
    "$@" --help | sed -n 's/^ \{2,6\}\(-., \)\{0,1\}\(--[a-z][a-z0-9-]*\).*/\2/p'
}

# Checks that every line of $dir/want is a line of $dir/out. Not for the end of a pipe, where counts are lost.
all_there() {
    missing=
    while read -r want; do
        grep -qxF -- "$want" "$dir/out" || missing="$missing $want"
    done <"$dir/want"
    [ -z "$missing" ] && ok "$1" || not_ok "$1: without$missing"
}

# complete_SHELL WORD...: writes the shell's offers for the last word to $dir/out, one per line. Bash: and what it does with all
# of them to $dir/options, such as -o filenames
complete_bash() {
    dir=$dir bash -c 'compopt() { echo "$*"; }
        . "$0/tools/completion/kvcobra.bash"
        complete -p kvcobra >"$dir/options"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _kvcobra >>"$dir/options"
        printf "%s\n" "${COMPREPLY[@]}"' "$ROOT" "$@" >"$dir/out" 2>"$dir/err"
}
# without its line editor, zsh has none of the functions that put offers into a list
complete_zsh() {
    zsh -f -c 'compset() { [[ $PREFIX == ${~2}* ]] && PREFIX=${PREFIX#*=}; true }
        _describe() { local one; for one in ${(P)2}; do [[ $one == $PREFIX* ]] && print -r -- ${one%%:*}; done; true }
        _files() { print -rl -- $PREFIX*(N) }
        words=("${(@)@[2,-1]}") CURRENT=${#words} PREFIX=${words[-1]} root=$1
        widget() { source $root/tools/completion/_kvcobra }
        widget' zsh "$ROOT" "$@" >"$dir/out" 2>"$dir/err"
}
complete_fish() {
    fish --no-config -c 'source $argv[1]; complete -C (string join " " -- $argv[2..])' \
        "$ROOT/tools/completion/kvcobra.fish" "$@" 2>"$dir/err" | cut -f 1 >"$dir/out"
}

# exactly NAME: the offers are the lines of $dir/want and nothing else
exactly() {
    sort -u "$dir/want" >"$dir/want.sorted"
    sort -u "$dir/out" | cmp -s - "$dir/want.sorted" && ok "$1" || not_ok "$1: $(tr '\n' ' ' <"$dir/out")"
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

# every option whose value is one of some words, as --help has them: COMMAND OPTION WORD|WORD...
for command in $commands kvcobrad; do
    if [ "$command" = kvcobrad ]; then
        "$KVCOBRAD" --help
    else
        "$KVCOBRA" "$command" --help
    fi | sed -n "s/^ .*\(--[a-z-]*\)=\([a-z0-9-]*|[a-z0-9|-]*\).*/$command \1 \2/p"
done >"$dir/values"
[ "$(wc -l <"$dir/values")" -ge 11 ] && ok "there are options with words as values" || not_ok "there are options with words as values"

for shell in bash zsh fish; do
    command -v $shell >/dev/null 2>&1 || { skip "$shell is not here"; continue; }
    complete_$shell kvcobra ""
    printf "%s\n" $commands $python_commands help --help --version >"$dir/want"
    exactly "$shell: commands"
    complete_$shell kvcobra bench ""
    echo "$benches" >"$dir/want"
    all_there "$shell: benches"
    complete_$shell kvcobra-lab bench ""
    printf '%s\n' attend engine generate service solve >"$dir/want"
    all_there "$shell: benches of the laboratory"
    complete_$shell kvcobra help ""
    printf "%s\n" $commands $python_commands >"$dir/want"
    exactly "$shell: help of commands"
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
        echo "$values" | tr '|' '\n' >"$dir/want"
        exactly "$shell: values of $command $option"
    done 4<"$dir/values"
    echo "$digest" | cut -c 1-12 >"$dir/want"
    complete_$shell kvcobra table fetch ""
    exactly "$shell: digests of tables"
    (cd "$dir" && ls -d -- *) >>"$dir/want"
    complete_$shell kvcobra table activate ""
    all_there "$shell: digests and files of tables"
    echo 3.table >"$dir/want"
    complete_$shell kvcobra inspect 3.t
    exactly "$shell: files"
    if [ "$shell" = bash ]; then # a folder "table" must not make "table/" of the command
        grep -q filenames "$dir/options" && ok "bash: files are quoted as names of files" || not_ok "bash: files are quoted as names of files"
        complete_bash kvcobra tabl
        grep -q filenames "$dir/options" && not_ok "bash: a command is no name of a file" || ok "bash: a command is no name of a file"
    fi
    echo "$digest" | cut -c 1-12 >"$dir/want"
    complete_$shell kvcobra evict --table ""
    exactly "$shell: digests of tables as a value"
    if [ "$shell" = bash ]; then # which makes three words of it
        complete_bash kvcobra evict --table = ""
    else
        complete_$shell kvcobra evict --table=
    fi
    sed -i 's/^--table=//' "$dir/out"
    exactly "$shell: digests of tables behind ="
    echo "uid-$(id -u)" >"$dir/want"
    complete_$shell kvcobra quota ""
    exactly "$shell: tenants"
    complete_$shell kvcobra evict --tenant ""
    exactly "$shell: tenants as a value"
    options_of "$KVCOBRAD" >"$dir/want"
    complete_$shell kvcobrad --
    exactly "$shell: options of kvcobrad"
    for command in $commands; do
        [ "$command" != bench ] || continue
        complete_$shell kvcobra "$command" --
        options_of "$KVCOBRA" "$command" >"$dir/want"
        exactly "$shell: options of $command"
    done
    for bench in $benches; do
        complete_$shell kvcobra bench "$bench" --
        options_of "$KVCOBRA" bench "$bench" >"$dir/want"
        exactly "$shell: options of bench $bench"
    done
done
finish
