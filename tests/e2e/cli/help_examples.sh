#!/bin/sh
# The examples at the end of --help of every command run as they stand, with files of the names that they use, and against a
# daemon. A few long runs are shortened. Not run: 'demo' (demo.sh), 'model alias' and 'model-id' with a folder (model.sh,
# model_id.sh), 'up', 'down' (up.sh), 'recalibrate' (test_client_recalibrate.c), 'bench capacity', 'bench tier' (bench.sh).
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"
case $KVCOBRA in /*) ;; *) KVCOBRA=$PWD/$KVCOBRA ;; esac
mkdir "$dir/bin" "$dir/files"
ln -s "$KVCOBRA" "$dir/bin/kvcobra"
"$TINY_MODEL" "$dir/files/model.gguf"
"$KVCOBRA" calibrate "$dir/files/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/files/model-3.table" >/dev/null
head -c 1500 "$ROOT/README.md" >"$dir/files/manual.txt"
mkfifo "$dir/ready"
"$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 8G --arena-bytes 8M \
    --spare-extents 0 --log-level 4 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"

# one example: as a user would type it, in a folder with the files that examples name, for this user
run_example() {
    (cd "$dir/files" && PATH="$dir/bin:$PATH" timeout 600 sh -euc "$1" </dev/null)
}

# examples_of COMMAND...: the examples behind the heading, continued lines joined, to $dir/examples
examples_of() {
    "$KVCOBRA" "$@" --help | sed -n '/^Examples\{0,1\}\b.*/,$p' | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' |
        sed -n 's/^  \(kvcobra .*\)/\1/p' | sed "s/uid-1000/uid-$(id -u)/; s/uid-0/uid-$(id -u)/; s/651ed3/${digest:-651ed3}/" >"$dir/examples"
}

# ends_with_example COMMAND...: nothing but examples stands behind the heading
ends_with_example() {
    "$KVCOBRA" "$@" --help | sed -n '/./p' | tail -n 1 | grep -q '^  ' && [ -s "$dir/examples" ] &&
        ok "help of $* ends with an example" || not_ok "help of $* ends with an example"
}

# run_examples COMMAND...: those of its help
run_examples() {
    examples_of "$@"
    ends_with_example "$@"
    while read -r example <&4; do
        case $example in
        *monitor*) [ "${example#*--count}" != "$example" ] || example="$example --count 1 --last 500" ;;
        *jq*) example=${example%|*} ;; # another program
        *--generate*) example=$(echo "$example" | sed 's/--generate [0-9]*/--generate 4 --tokens 256/') ;;
        *"kvcobra eval"*) example="$example --tokens 512 --window 256" ;;
        *"kvcobra calibrate"*) example="$example --tokens 1024 --window 256" ;;
        esac
        if run_example "$example" >"$dir/out" 2>"$dir/err"; then
            ok "$example"
        elif grep -q -- "--yes answers in advance" "$dir/err"; then
            ok "$example (up to its question)"
        elif grep -q "^no page was forgotten" "$dir/out"; then
            ok "$example (nothing was served)"
        else
            shown=
            not_ok "$example"
        fi
    done 4<"$dir/examples"
}

# files that examples name
cp "$dir/m.stats" "$dir/files/model.stats"
for name in 3 k-1 news-2 books-2; do
    cp "$dir/files/model-3.table" "$dir/files/$name.table"
done
"$KVCOBRA" solve "$dir/m.stats" --bpd 2 -o "$dir/files/model-2.table" >/dev/null
cp "$dir/files/model-2.table" "$dir/files/2.table"
head -c 3000 "$ROOT/DESIGN.md" >"$dir/files/book.txt"
head -c 3000 "$ROOT/LICENSE" >"$dir/files/a.txt"
seq 1 100 >"$dir/files/tokens.txt"
cp "$dir/files/book.txt" "$dir/files/a"
cp "$dir/files/a.txt" "$dir/files/b"
for day in monday tuesday; do
    head -c "$([ $day = monday ] && echo 2000 || echo 4000)" "$ROOT/LICENSE" | tail -c 2000 >"$dir/$day.txt"
    "$KVCOBRA" calibrate "$dir/files/model.gguf" --text "$dir/$day.txt" --tokens 512 --window 256 -o "$dir/files/$day.stats" --quiet \
        >/dev/null
done
mkdir "$dir/files/splits"

for command in calibrate merge solve inspect eval compare; do
    run_examples $command
done
for action in stage activate; do
    run_examples table $action
done
digest=$("$KVCOBRA" table list --json | sed -n 's/.*"digest": "\([0-9a-f]*\)".*/\1/p' | head -n 1)
run_examples table fetch
expect "another table" 0 "$KVCOBRA" table stage "$dir/files/model-2.table"
for action in list shadow canary; do
    run_examples table $action
done
expect "an earlier table" 0 "$KVCOBRA" table activate "$dir/files/model-2.table"
expect "a table to roll back from" 0 "$KVCOBRA" table activate "$dir/files/model-3.table"
run_examples table rollback
expect "a table to retire" 0 "$KVCOBRA" table activate "$dir/files/model-3.table"
run_examples table retire
# tables first, so that generate can share; drain last
for command in table generate ping doctor status top clients monitor quota lookup pin unpin export import evict flush drain; do
    run_examples $command
done
for command in model model-id recalibrate up down demo bench "bench capacity" "bench tier"; do
    # shellcheck disable=SC2086
    examples_of $command
    # shellcheck disable=SC2086
    ends_with_example $command
done
finish
