# bash completion of kvcobra, kvcobra-lab and kvcobrad: commands and options come from --help, tables and tenants from the daemon

_kvcobra_commands() { # the names in a list of commands
    "$@" --help 2>/dev/null | sed -n '/^Commands.*:$\|^Measures on this machine:$/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p'
}

_kvcobra_options() {
    "$@" --help 2>/dev/null | grep -oE -- '(^|[ ,])--[a-z][a-z0-9-]*' | tr -d ' ,' | sort -u
}

_kvcobra_actions() { # the actions of a command: lines of "  name ARGUMENT   what it does" behind the options
    "$@" --help 2>/dev/null | sed -n '/^      --usage /,$s/^  \([a-z]\{4,\}\)\( [A-Z]\{1,\}[.]*\)*  .*/\1/p'
}

# what an option takes, if these are names
_kvcobra_values() {
    case $1/$2 in
    solve/--method) echo bands paper-kl paper-mse dp ;;
    solve/--metric) echo fisher output attention query mse ;;
    solve/--curve) echo measured gaussian bennett ;;
    solve/--quantiser) echo lloyd-max uniform uniform-midtread ;;
    solve/--decoder) echo least-squares inverse ;;
    solve/--predict) echo head layer none ;;
    calibrate/--metric) echo output attention fisher mse all ;;
    eval/--side) echo k v kv ;;
    kvcobrad/--keep-pool | kvcobrad/-k) echo auto yes no ;;
    kvcobrad/--log-format) echo logfmt json ;;
    esac
}

# _kvcobra_ask KEY PATTERN COMMAND...: values of a key in the JSON that a daemon's command prints, if the daemon answers
_kvcobra_ask() {
    local key=$1 pattern=$2
    shift 2
    timeout 2 "$@" --json --quiet 2>/dev/null </dev/null | grep -oE "\"$key\": *\"$pattern\"" | sed 's/.*"\(.*\)"$/\1/'
}

_kvcobra_tables() { # the first 12 digits, as 'table list' prints them
    _kvcobra_ask digest '[0-9a-f]{64}' "$1" table list "${@:2}" | cut -c 1-12
}

_kvcobra_models() {
    _kvcobra_ask digest '[0-9a-f]{64}' "$1" model list "${@:2}"
}

_kvcobra_tenants() {
    timeout 2 "$1" status --json "${@:2}" 2>/dev/null </dev/null |
        sed -n '/^  "tenants": \[$/,/^  \]/s/^      "name": "\(.*\)",$/\1/p'
}

_kvcobra_socket() { # --socket PATH of the command line, as two words
    local i
    for ((i = 1; i + 1 < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == --socket ]] || continue
        [[ ${COMP_WORDS[i + 1]} == "=" ]] && ((i++))
        printf '%s\n' --socket "${COMP_WORDS[i + 1]}"
    done
}

# _kvcobra_arguments PROGRAM COMMAND ACTION OPTION: what may stand here beside an option
_kvcobra_arguments() {
    local program=$1 command=$2 action=$3 option=$4
    local -a socket
    mapfile -t socket < <(_kvcobra_socket)

    case $option in
    --tenant) _kvcobra_tenants "$program" "${socket[@]}" && return ;;
    --model) _kvcobra_models "$program" "${socket[@]}" && return ;;
    --table) [[ $command =~ ^(evict|export|flush|lookup|pin|unpin)$ ]] && _kvcobra_tables "$program" "${socket[@]}" ;;
    --*) _kvcobra_values "$command" "$option" ;;
    *)
        case $command/$action in
        quota/) _kvcobra_tenants "$program" "${socket[@]}" ;;
        table/ | model/ | clients/) _kvcobra_actions "$program" "$command" ;;
        table/fetch | table/shadow | table/canary | table/activate | table/rollback | table/retire)
            _kvcobra_tables "$program" "${socket[@]}"
            ;;
        clients/disconnect)
            timeout 2 "$program" clients list --json "${socket[@]}" 2>/dev/null |
                grep -oE '"session": *[0-9]+' | grep -oE '[0-9]+$'
            ;;
        model/alias | model/unalias) _kvcobra_models "$program" "${socket[@]}" ;;
        esac
        ;;
    esac
}

_kvcobra() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} action= i
    local -a command=("$program")

    COMPREPLY=()
    [[ $word == "=" ]] && word="" # bash makes words of --option = value
    [[ $before == "=" && $COMP_CWORD -ge 2 ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
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
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do # the first word that is no option, and no option's value
        [[ ${COMP_WORDS[i]} == [a-z]* && ${COMP_WORDS[i - 1]} != --* && ${COMP_WORDS[i - 1]} != "=" ]] || continue
        action=${COMP_WORDS[i]}
        break
    done
    mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_arguments "$program" "${COMP_WORDS[1]}" "$action" "$before")" -- "$word")
    [[ ${#COMPREPLY[@]} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _kvcobra kvcobra kvcobra-lab

_kvcobrad() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}

    COMPREPLY=()
    [[ $word == "=" ]] && word=""
    [[ $before == "=" && $COMP_CWORD -ge 2 ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_options "${COMP_WORDS[0]}")" -- "$word")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$(_kvcobra_values kvcobrad "$before")" -- "$word")
    [[ ${#COMPREPLY[@]} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _kvcobrad kvcobrad
