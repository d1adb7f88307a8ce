#!/bin/sh
# kvcobra.sh KVCOBRA: the man page kvcobra(1), made from the help of the program.
set -eu
kvcobra=$1

# literal text for mdoc: no line may begin a request, backslashes are doubled
literal() {
    echo ".Bd -literal"
    sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/"
    echo ".Ed"
}

# the names and summaries in a list of commands: lines of "  name   summary"
commands() {
    sed -n '/^Commands:$\|^Measures on this machine:$/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p' # the first paragraph after it
}

cat <<'EOF'
.Dd November 21, 2026
.Dt KVCOBRA 1
.Os
.Sh NAME
.Nm kvcobra
.Nd compress, measure and share the key-value caches of language models
.Sh SYNOPSIS
.Nm
.Ar COMMAND
.Op Ar options
.Sh DESCRIPTION
EOF
"$kvcobra" --help | literal
for command in $("$kvcobra" --help | commands); do
    echo ".Sh KVCOBRA $(echo "$command" | tr '[:lower:]' '[:upper:]')"
    "$kvcobra" "$command" --help | literal
    [ "$command" = bench ] || continue
    for bench in $("$kvcobra" bench --help | commands); do
        echo ".Ss bench $bench"
        "$kvcobra" bench "$bench" --help | literal
    done
done
cat <<'EOF'
.Sh EXIT STATUS
0 success; 1 failure, one sentence on standard error says why; 2 wrong usage, nothing was done.
.Sh SEE ALSO
.Xr libkvcobra 3 ,
.Xr kvcobrad.conf 5 ,
.Xr kvcobrad-metrics 7 ,
.Xr kvcobrad 8
EOF
