# bash completion of kvcobra: commands and options come from the program's --help

_kvcobra_commands() { # the names in a list of commands
    "$@" --help 2>/dev/null | sed -n '/^Commands:$\|^Measures on this machine:$/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p'
}

_kvcobra_options() {
    "$@" --help 2>/dev/null | grep -oE -- '(^| )--[a-z][a-z0-9-]*' | tr -d ' ' | sort -u
}

_kvcobra() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]}
    local -a command=("$program")

    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_commands "$program") help --help --version" -- "$word")
        return
    fi
    command+=("${COMP_WORDS[1]}")
    if [[ ${COMP_WORDS[1]} == help && $COMP_CWORD -eq 2 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_commands "$program")" -- "$word")
        return
    fi
    if [[ ${COMP_WORDS[1]} == bench && $COMP_CWORD -eq 2 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_commands "$program" bench) --help" -- "$word")
        return
    fi
    [[ ${COMP_WORDS[1]} == bench ]] && command+=("${COMP_WORDS[2]}")
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_options "${command[@]}")" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _kvcobra kvcobra
