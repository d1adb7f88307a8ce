# bash completion of kvcobra, kvcobra-lab and kvcobrad: the program says what may stand there (base/completion.h)

_kvcobra() {
    local line word=${COMP_WORDS[COMP_CWORD]}
    local -a words=("${COMP_WORDS[@]:1:COMP_CWORD}")

    [[ $word != "=" ]] || word="" # bash makes words of --option = value
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o filenames # with a slash behind folders; other words may have the name of a folder, too
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" --complete "${words[@]}" 2>/dev/null </dev/null)
}
complete -F _kvcobra kvcobra kvcobra-lab kvcobrad
