# fish completion of kvcobra: commands and options come from the program's --help

function __kvcobra_commands
    command $argv --help 2>/dev/null | sed -n '/^Commands:$\|^Measures on this machine:$/,/^$/s/^  \([a-z][a-z-]*\)  *\(.*\)/\1\t\2/p'
end

function __kvcobra_options
    set -l words (commandline -opc)
    set -l asked $words[1] $words[2]
    if test "$words[2]" = bench
        set asked $asked $words[3]
    end
    command $asked --help 2>/dev/null | grep -oE -- '(^| )--[a-z][a-z0-9-]*' | string trim | sort -u
end

complete -c kvcobra -n '__fish_is_first_token' -f -a '(__kvcobra_commands kvcobra)'
complete -c kvcobra -n '__fish_is_first_token' -f -a help
complete -c kvcobra -n '__fish_seen_subcommand_from help' -f -a '(__kvcobra_commands kvcobra)'
complete -c kvcobra -n '__fish_seen_subcommand_from bench' -f -a '(__kvcobra_commands kvcobra bench)'
complete -c kvcobra -n 'not __fish_is_first_token; and string match -q -- "-*" (commandline -ct)' -f -a '(__kvcobra_options)'
