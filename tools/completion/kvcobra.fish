# fish completion of kvcobra, kvcobra-lab and kvcobrad: commands and options come from --help, tables and tenants from the daemon

function __kvcobra_commands
    command $argv --help 2>/dev/null | sed -n '/^Commands.*:$\|^Measures on this machine:$/,/^$/s/^  \([a-z][a-z-]*\)  *\(.*\)/\1\t\2/p'
end

function __kvcobra_options
    set -l words (commandline -opc)
    set -l asked $words[1]
    if test "$words[1]" != kvcobrad
        set asked $words[1] $words[2]
    end
    if test "$words[2]" = bench
        set asked $asked $words[3]
    end
    command $asked --help 2>/dev/null | grep -oE -- '(^|[ ,])--[a-z][a-z0-9-]*' | string trim -c ' ,' | sort -u
end

function __kvcobra_actions # lines of "  name ARGUMENT   what it does" behind the options
    command kvcobra $argv --help 2>/dev/null | sed -n '/^      --usage /,$s/^  \([a-z]\{4,\}\)\( [A-Z]\{1,\}[.]*\)*  .*/\1/p'
end

# what an option takes, if these are names
function __kvcobra_values
    switch $argv[1]/$argv[2]
        case solve/--method
            string split ' ' 'bands paper-kl paper-mse dp'
        case solve/--metric
            string split ' ' 'fisher output attention query mse'
        case solve/--curve
            string split ' ' 'measured gaussian bennett'
        case solve/--quantiser
            string split ' ' 'lloyd-max uniform uniform-midtread'
        case solve/--decoder
            string split ' ' 'least-squares inverse'
        case solve/--predict
            string split ' ' 'head layer none'
        case calibrate/--metric
            string split ' ' 'output attention fisher mse all'
        case eval/--side
            string split ' ' 'k v kv'
        case kvcobrad/--keep-pool kvcobrad/-k
            string split ' ' 'auto yes no'
        case kvcobrad/--log-format
            string split ' ' 'logfmt json'
    end
end

function __kvcobra_socket # --socket PATH of the command line
    set -l words (commandline -opc)
    for i in (seq 2 (count $words))
        if string match -q -- '--socket=*' $words[$i]
            echo $words[$i]
        else if test "$words[$i]" = --socket; and set -q words[(math $i + 1)]
            printf '%s\n' --socket $words[(math $i + 1)]
        end
    end
end

function __kvcobra_tables # the first 12 digits, as 'table list' prints them
    timeout 2 kvcobra table list --json (__kvcobra_socket) 2>/dev/null </dev/null | grep -oE '"digest": *"[0-9a-f]{64}"' | sed 's/.*"\(.*\)"$/\1/' | cut -c 1-12
end

function __kvcobra_models
    timeout 2 kvcobra model list --json (__kvcobra_socket) 2>/dev/null </dev/null | grep -oE '"digest": *"[0-9a-f]{64}"' | sed 's/.*"\(.*\)"$/\1/'
end

function __kvcobra_tenants
    timeout 2 kvcobra status --json (__kvcobra_socket) 2>/dev/null </dev/null | sed -n '/^  "tenants": \[$/,/^  \]/s/^      "name": "\(.*\)",$/\1/p'
end

function __kvcobra_sessions
    timeout 2 kvcobra clients list --json (__kvcobra_socket) 2>/dev/null </dev/null | grep -oE '"session": *[0-9]+' | grep -oE '[0-9]+$'
end

function __kvcobra_arguments
    set -l words (commandline -opc)
    set -l before $words[-1]
    set -l now (commandline -ct)
    set -l start ''
    set -l action ''
    set -l command $words[2]
    if test "$words[1]" = kvcobrad
        set command kvcobrad
    end
    if string match -q -- '--*=*' $now
        set before (string replace -r '=.*' '' -- $now)
        set start $before=
    end
    for i in (seq 3 (count $words))
        if test -z "$action"; and string match -qr '^[a-z]' -- $words[$i]; and not string match -q -- '--*' $words[(math $i - 1)]
            set action $words[$i]
        end
    end
    switch $before
        case --tenant
            set found (__kvcobra_tenants)
        case --model
            set found (__kvcobra_models)
        case --table
            contains "$command" evict export flush lookup pin unpin; and set found (__kvcobra_tables)
        case '--*' -k
            set found (__kvcobra_values $command $before)
        case '*'
            switch $command/$action
                case quota/
                    set found (__kvcobra_tenants)
                case table/ model/ clients/
                    set found (__kvcobra_actions $command)
                case table/fetch table/shadow table/canary table/activate table/rollback table/retire
                    set found (__kvcobra_tables)
                case clients/disconnect
                    set found (__kvcobra_sessions)
                case model/alias model/unalias
                    set found (__kvcobra_models)
            end
    end
    for one in $found
        echo $start$one
    end
end

complete -c kvcobra -n '__fish_is_first_token' -f -a '(__kvcobra_commands kvcobra)'
complete -c kvcobra -n '__fish_is_first_token' -f -a help
complete -c kvcobra -n '__fish_seen_subcommand_from help' -f -a '(__kvcobra_commands kvcobra)'
complete -c kvcobra -n '__fish_seen_subcommand_from bench' -f -a '(__kvcobra_commands kvcobra bench)'
complete -c kvcobra -n 'not __fish_is_first_token; and string match -q -- "-*" (commandline -ct)' -f -a '(__kvcobra_options)'
complete -c kvcobra -n 'not __fish_is_first_token' -a '(__kvcobra_arguments)'
complete -c kvcobra-lab -n '__fish_is_first_token' -f -a '(__kvcobra_commands kvcobra-lab) help'
complete -c kvcobra-lab -n '__fish_seen_subcommand_from help' -f -a '(__kvcobra_commands kvcobra-lab)'
complete -c kvcobra-lab -n '__fish_seen_subcommand_from bench' -f -a '(__kvcobra_commands kvcobra-lab bench)'
complete -c kvcobra-lab -n 'not __fish_is_first_token; and string match -q -- "-*" (commandline -ct)' -f -a '(__kvcobra_options)'
complete -c kvcobrad -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__kvcobra_options)'
complete -c kvcobrad -a '(__kvcobra_arguments)'
