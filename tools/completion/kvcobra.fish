# fish completion of kvcobra, kvcobra-lab and kvcobrad: the program says what may stand there (base/completion.h)

function __kvcobra_complete
    set -l words (commandline -opc)
    set -l now (commandline -ct)
    set -l start (string match -r -- '^--[^=]*=' $now) # --option=value: the value alone is completed
    for line in (command $words[1] --complete $words[2..-1] "$now" 2>/dev/null </dev/null)
        if test "$line" = :files
            __fish_complete_path (string replace -r -- '^--[^=]*=' '' $now) | string replace -r -- "^" "$start"
        else
            echo "$start$line"
        end
    end
end

for program in kvcobra kvcobra-lab kvcobrad
    complete -c $program -f -a '(__kvcobra_complete)'
end
