#!/bin/sh
# Completion of bash and fish, zsh's syntax, and the man pages: every command and option of --help is there.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

folder=$(cd "$(dirname "$KVCOBRA")" && pwd)
PATH=$folder:$PATH
export PATH
commands=$("$KVCOBRA" --help | sed -n '/^Commands:$/,/^$/s/^  \([a-z-]*\) .*/\1/p')
benches=$("$KVCOBRA" bench --help | sed -n '/^Measures on this machine:$/,/^$/s/^  \([a-z-]*\) .*/\1/p')
[ "$(echo "$commands" | wc -w)" -ge 15 ] && ok "there are commands" || not_ok "there are commands"
[ "$(echo "$benches" | wc -w)" -ge 3 ] && ok "there are benches" || not_ok "there are benches"

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
        _kvcobra
        printf "%s\n" "${COMPREPLY[@]}"' "$ROOT" "$@" >"$dir/out" 2>"$dir/err"
}
complete_fish() {
    fish --no-config -c 'source $argv[1]; complete -C (string join " " -- $argv[2..])' \
        "$ROOT/tools/completion/kvcobra.fish" "$@" 2>"$dir/err" | cut -f 1 >"$dir/out"
}

for shell in bash fish; do
    command -v $shell >/dev/null 2>&1 || { skip "$shell is not here"; continue; }
    complete_$shell kvcobra ""
    echo "$commands" >"$dir/want"
    all_there "$shell: commands"
    complete_$shell kvcobra bench ""
    echo "$benches" >"$dir/want"
    all_there "$shell: benches"
    complete_$shell kvcobra help ""
    echo "$commands" >"$dir/want"
    all_there "$shell: help of commands"
    complete_$shell kvcobra dr
    [ "$(cat "$dir/out")" = drain ] && ok "$shell: a beginning" || not_ok "$shell: a beginning"
    complete_$shell kvcobra drain --ti
    [ "$(cat "$dir/out")" = --timeout ] && ok "$shell: an option's beginning" || not_ok "$shell: an option's beginning"
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

expect "the man page is made" 0 sh "$ROOT/tools/man/kvcobra.sh" "$KVCOBRA"
cp "$dir/out" "$dir/kvcobra.1"
grep -oE -- '--[a-z][a-z0-9-]*' "$dir/kvcobra.1" | sort -u >"$dir/out"
for command in $commands; do
    grep -q "^\.Sh KVCOBRA $(echo "$command" | tr '[:lower:]' '[:upper:]')$" "$dir/kvcobra.1" &&
        ok "man: $command" || not_ok "man: $command"
    [ "$command" != bench ] || continue
    options_of "$command" >"$dir/want"
    all_there "man: options of $command"
done
for bench in $benches; do
    grep -q "^\.Ss bench $bench$" "$dir/kvcobra.1" && ok "man: bench $bench" || not_ok "man: bench $bench"
done
expect "the library's page is made" 0 sh "$ROOT/tools/man/libkvcobra.sh" "$ROOT/client/kvcobra.h" \
    "$ROOT/client/kvcobra-gpu.h" "$ROOT/client/kvcobra-llama.h" "$ROOT/client/kvcobra-operator.h"
missing=
for call in $(sed '/^KVCOBRA_PRIVATE/,$d' "$ROOT/client/libkvcobra.map" | grep -oE 'kvc_[a-z_]+;' | tr -d ';'); do
    grep -q "$call(" "$dir/out" || missing="$missing $call"
done
[ -z "$missing" ] && ok "man: every call" || not_ok "man: every call: without$missing"
finish
