#!/bin/sh
# Errors of files, texts and daemons: exit status 1, one sentence that names the thing, and no existing file is changed.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

model=$dir/model.gguf
text=$dir/text.txt
"$TINY_MODEL" "$model"
"$TINY_MODEL" "$dir/other.gguf" 1
cp "$ROOT/LICENSE" "$text"
"$KVCOBRA" calibrate "$model" --text "$text" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/m.table" >/dev/null

expect_sentence "no model" "$dir/none.gguf" "$KVCOBRA" generate "$dir/none.gguf" --prompt x
expect_sentence "a folder for a model" "$dir" "$KVCOBRA" generate "$dir" --prompt x
expect_sentence "a text for a model" "$text" "$KVCOBRA" generate "$text" --prompt x
: >"$dir/empty"
head -c 200 "$text" >"$dir/short"
expect_sentence "an empty model" "$dir/empty" "$KVCOBRA" generate "$dir/empty" --prompt x
# files that end early: in the header, in the keys, in the tensors
size=$(wc -c <"$model")
for bytes in 3 20 200 5000 $((size / 2)) $((size - 1)); do
    head -c "$bytes" "$model" >"$dir/cut.gguf"
    expect_sentence "a model of $bytes bytes" "$dir/cut.gguf" "$KVCOBRA" generate "$dir/cut.gguf" --prompt x
done

# weights that are not finite: the last of the head's norm, which ends the file, and the last before it, of layer 1
damage() {
    python3 -c 'import struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
struct.pack_into("<f", b, len(b) - int(sys.argv[2]), float(sys.argv[3]))
open(sys.argv[4], "wb").write(b)' "$model" "$@"
}
damage 4 nan "$dir/nan.gguf"
damage $((4 + 4 * 128)) inf "$dir/inf.gguf"
head -c 6000 "$text" >"$dir/some.txt"
# unfinite WORDS MODEL COMMAND...
unfinite() {
    words=$1 damaged=$2 command=$3
    shift 3
    expect_sentence "$(basename "$damaged"): $command $*" "$words" "$program" "$command" "$damaged" "$@" --quiet
}
set -- --text "$dir/some.txt" --table "$dir/m.table"
program=$KVCOBRA
head="a number that is not finite in the logits of the next token"
unfinite "$head" "$dir/nan.gguf" generate --prompt "hello there" --tokens 4
unfinite "$head" "$dir/nan.gguf" generate --prompt "hello there" --tokens 4 --temperature 1
unfinite "$head" "$dir/nan.gguf" generate --prompt "hello there" --tokens 4 --table "$dir/m.table" --json
unfinite "$head" "$dir/nan.gguf" eval "$@" --window 256
unfinite "$head" "$dir/nan.gguf" eval "$@" --generate 2 --window 256
unfinite "$head" "$dir/nan.gguf" eval "$@" --hits --window 256
layer="a number that is not finite in the output of layer 1 for token 1 of the text"
unfinite "$layer" "$dir/inf.gguf" generate --prompt "hello there" --tokens 4
program=$LAB
unfinite "$head" "$dir/nan.gguf" eval "$@" --retrieval 1 --window 1000
unfinite "$head" "$dir/nan.gguf" eval --table "$dir/m.table" --ruler 1 --lengths 1000
unfinite "$layer" "$dir/inf.gguf" eval --comparator q4_0 --text "$dir/some.txt" --window 256

expect_sentence "no table" "$dir/none.table" "$KVCOBRA" generate "$model" --prompt x --table "$dir/none.table"
expect_sentence "a text for a table" "$text" "$KVCOBRA" generate "$model" --prompt x --table "$text"
size=$(wc -c <"$dir/m.table")
for bytes in 0 40 1000 $((size / 2)) $((size - 1)); do
    head -c "$bytes" "$dir/m.table" >"$dir/cut.table"
    expect_sentence "a table of $bytes bytes" "$dir/cut.table" "$KVCOBRA" generate "$model" --prompt x \
        --table "$dir/cut.table"
    expect_sentence "inspecting a table of $bytes bytes" "$dir/cut.table" "$KVCOBRA" inspect "$dir/cut.table"
done
expect_sentence "a table of another model" "$dir/m.table" "$KVCOBRA" generate "$dir/other.gguf" --prompt x \
    --table "$dir/m.table"
expect_sentence "the same for eval" "$dir/m.table" "$KVCOBRA" eval "$dir/other.gguf" --table "$dir/m.table" \
    --text "$text" --window 256
size=$(wc -c <"$dir/m.stats")
for bytes in 0 40 1000 $((size / 2)) $((size - 1)); do
    head -c "$bytes" "$dir/m.stats" >"$dir/cut.stats"
    expect_sentence "statistics of $bytes bytes" "$dir/cut.stats" "$KVCOBRA" solve "$dir/cut.stats" --bpd 3 \
        -o "$dir/x.table"
done
# files that end at a boundary of a section: the headers have offsets and sizes (alloc/README.md)
cuts() {
    python3 - "$1" "$2" "$3" <<'PY'
import struct, sys
b = open(sys.argv[1], "rb").read()
sections = [struct.unpack_from("<QQ", b, int(sys.argv[2]) + 16 * i) for i in range(int(sys.argv[3]))]
print(*sorted({at for o, n in sections for at in (o - 1, o, o + n - 1, o + n) if 0 < at < len(b)}))
PY
}
# every_cut WHAT FILE CUTS COMMAND...: one case for all; COMMAND reads $dir/cut
every_cut() {
    what=$1 file=$2 cuts=$3 n=0 wrong=
    shift 3
    for bytes in $cuts; do
        head -c "$bytes" "$file" >"$dir/cut"
        got=0
        "$@" >"$dir/out" 2>"$dir/err" || got=$?
        [ "$got" -eq 1 ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q "^kvcobra: $dir/cut: " \
            "$dir/err" || wrong="$wrong $bytes"
        n=$((n + 1))
    done
    [ "$n" -gt 10 ] && [ -z "$wrong" ] && ok "$what cut in $n places" || not_ok "$what cut in $n places: wrong at$wrong"
}
every_cut "statistics" "$dir/m.stats" "$(cuts "$dir/m.stats" 296 11)" "$KVCOBRA" solve "$dir/cut" --bpd 3 -o "$dir/x.table"
every_cut "a table" "$dir/m.table" "$(cuts "$dir/m.table" 96 6)" "$KVCOBRA" inspect "$dir/cut"
[ ! -e "$dir/x.table" ] && ok "no table is made of them" || not_ok "no table is made of them"

expect_sentence "no text" "$dir/none.txt" "$KVCOBRA" eval "$model" --table "$dir/m.table" --text "$dir/none.txt"
expect_sentence "an empty text" "$dir/empty" "$KVCOBRA" eval "$model" --table "$dir/m.table" --text "$dir/empty"
gzip -c "$text" >"$dir/text.gz"
expect_sentence "a compressed text" "gunzip" "$KVCOBRA" eval "$model" --table "$dir/m.table" --text "$dir/text.gz"
expect_sentence "a model for statistics" "not a statistics file but a GGUF model" "$KVCOBRA" solve "$model" --bpd 3 -o "$dir/x.table"
expect_sentence "a table for statistics" "not a statistics file but an allocation table" "$KVCOBRA" solve "$dir/m.table" --bpd 3 \
    -o "$dir/x.table"
expect_sentence "statistics for a table" "not an allocation table but a statistics file" "$KVCOBRA" generate "$model" \
    --table "$dir/m.stats" --prompt x
expect_sentence "inspecting a model" "neither an allocation table nor a statistics file but a GGUF model" "$KVCOBRA" inspect "$model"
expect_sentence "a table for a model" "not a GGUF file but an allocation table" "$KVCOBRA" generate "$dir/m.table" --prompt x
expect_sentence "comparing with a model" "a GGUF model" "$KVCOBRA" compare "$dir/m.table" "$model"
expect_sentence "merging a text" "not a statistics file but a text" "$KVCOBRA" merge "$dir/m.stats" "$text" -o "$dir/x.stats"
expect_sentence "a model for a text" "is no text but a GGUF model" "$KVCOBRA" calibrate "$model" --text "$dir/other.gguf" \
    -o "$dir/x.stats"
expect_sentence "a table for a prompt" "is no text but an allocation table" "$KVCOBRA" generate "$model" --prompt-file "$dir/m.table"
printf 'caf\351 au lait' >"$dir/latin1.txt"
: >"$dir/blank.txt"
printf 'a b\n\nc d\n' >"$dir/lines.txt"
refused_text() {
    name=$1 words=$2
    shift 2
    expect_sentence "$name" "$words" "$KVCOBRA" calibrate "$model" -o "$dir/refused.stats" --window 128 "$@"
}
refused_text "calibrate: a text that is not UTF-8" "byte 0xe9 at offset 3" --text "$dir/latin1.txt"
refused_text "calibrate: an empty text" "$dir/blank.txt is empty" --text "$dir/blank.txt"
refused_text "calibrate: a text shorter than a window" "give more text or a smaller --window" --text "$dir/lines.txt"
refused_text "calibrate: lines too short to count" "give more text" --text "$dir/lines.txt" --lines
refused_text "calibrate: one text of two is missing" "$dir/none.txt" --text "$text" --text "$dir/none.txt"
[ ! -e "$dir/refused.stats" ] && ok "no statistics are made of them" || not_ok "no statistics are made of them"
expect "calibrate on a text shorter than the budget" 0 "$KVCOBRA" calibrate "$model" --text "$text" --tokens 1000000 \
    --window 256 -o "$dir/short.stats"
grep -q "the text is short: statistics of [0-9]* tokens instead of 1000000" "$dir/err" && ok "a sentence tells it" || not_ok "a sentence tells it"
expect "attention without depth weights" 0 "$KVCOBRA" calibrate "$model" --text "$text" --tokens 1024 --window 256 \
    --metric attention --no-depth-weights -o "$dir/attention.stats"
expect_sentence "metric attention of statistics without it" "lack metric attention" "$KVCOBRA" solve "$dir/m.stats" \
    --metric attention --bpd 3 -o "$dir/x.table"
expect "is solved" 0 "$KVCOBRA" solve "$dir/attention.stats" --bpd 3 -o "$dir/attention.table"
grep -q "weighs the distortion of all layers equally" "$dir/err" && ok "with a warning" ||
    not_ok "with a warning"
expect_sentence "a window beyond the model's" "--window" "$KVCOBRA" eval "$model" --table "$dir/m.table" \
    --text "$text" --window 100000
expect_sentence "keys in a text too short" "the text has 200 tokens" "$LAB" eval "$model" --comparator q4_0 --text "$dir/short" \
    --retrieval 2 --window 1000
expect_sentence "keys in a window too short" "--window" "$LAB" eval "$model" --comparator q4_0 --text "$text" \
    --retrieval 2 --window 400
expect_sentence "a task that does not fit" "common-words does not fit 500 tokens" "$LAB" eval "$model" --comparator q4_0 \
    --ruler 1 --lengths 500 --tasks common-words
expect_sentence "lengths beyond the model's" "--window 100000" "$LAB" eval "$model" --comparator q4_0 --ruler 1 \
    --lengths 100000
expect_sentence "a second text that is empty" "$dir/empty" "$LAB" eval "$model" --comparator q4_0 --text "$text" \
    --text "$dir/empty"
expect_sentence "a text that makes no prompt" "$dir/short" "$LAB" eval "$model" --comparator q4_0 \
    --text "$dir/short" --generate 2
expect_sentence "generations beyond the model's context" "--generate" "$LAB" eval "$model" --comparator q4_0 \
    --text "$text" --window 4000 --generate 200
expect_sentence "a format made of a text" "$text" "$LAB" eval "$model" --comparator svdq-2 --stats "$text" \
    --text "$text"
"$KVCOBRA" calibrate "$dir/other.gguf" --text "$text" --tokens 512 --window 256 --metric mse -o "$dir/other.stats" \
    --quiet >/dev/null
expect_sentence "a format made of another model" "$dir/other.stats" "$LAB" eval "$model" --comparator svdq-2 \
    --stats "$dir/other.stats" --text "$text"
expect_sentence "two tables, one of another model" "cannot use" "$LAB" eval "$dir/other.gguf" --text "$text" \
    --comparator q4_0 --table "$dir/m.table" --window 256
expect_sentence "a prompt beyond the model's" "tokens" "$KVCOBRA" generate "$model" --prompt-file "$text"
expect_sentence "a prompt that is not UTF-8" "not UTF-8" "$KVCOBRA" generate "$model" --prompt "$(printf 'caf\351')"
expect_sentence "an empty prompt" "prompt" "$KVCOBRA" generate "$model" --prompt ""
expect_sentence "a budget too small" "floor" "$KVCOBRA" solve "$dir/m.stats" --bpd 1 --floor 2 --quiet -o "$dir/x.table"
[ ! -e "$dir/x.table" ] && ok "no table is made of it" || not_ok "no table is made of it"

# output files
echo precious >"$dir/kept.table"
expect_sentence "a folder that is not there" "$dir/nowhere/x.table" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 \
    -o "$dir/nowhere/x.table"
# a pipe stands for every device: as root, -o /dev/null must not be replaced by a file
mkfifo "$dir/pipe"
ln -s kept.table "$dir/link"
for output in "$dir/nowhere/x" "$dir/pipe" "$dir/link" "$dir"; do
    expect_sentence "calibrate -o $output, before it begins" "$output" "$KVCOBRA" calibrate "$model" --text "$text" -o "$output"
    expect_sentence "solve -o $output" "$output" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$output"
    expect_sentence "merge -o $output" "$output" "$KVCOBRA" merge "$dir/m.stats" "$dir/none.stats" -o "$output"
    expect_sentence "inspect --html $output" "$output" "$KVCOBRA" inspect "$dir/m.table" --html "$output"
done
[ -p "$dir/pipe" ] && [ -L "$dir/link" ] && ok "pipe and link are unchanged" || not_ok "pipe and link are unchanged"
# "-" and pipes: texts are read from them, pages written to them; what is written whole is refused before the work
(
    KVCOBRA=$(realpath "$KVCOBRA")
    cd "$dir"
    expect_sentence "calibrate -o -" "it cannot be standard output" "$KVCOBRA" calibrate "$model" --text "$text" -o -
    expect_sentence "solve -o -" "it cannot be standard output" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o -
    expect_sentence "solve --sweep -o -" "not standard output" "$KVCOBRA" solve "$dir/m.stats" --total-bpd 6 --sweep -o -
    expect_sentence "merge -o -" "it cannot be standard output" "$KVCOBRA" merge "$dir/m.stats" "$dir/m.stats" -o -
    expect "inspect --html -" 0 "$KVCOBRA" inspect "$dir/m.table" --html - --quiet
    grep -q "</html>" "$dir/out" && ok "the page is on standard output" || not_ok "the page is on standard output"
    tail -c 8 "$dir/out" | grep -q "</html>" && ok "and nothing else" || not_ok "and nothing else"
    expect "inspect --html - --json" 2 "$KVCOBRA" inspect "$dir/m.table" --html - --json
    [ ! -e "$dir/-" ] && ok "no file is called -" || not_ok "no file is called -"
    [ "$failed" -eq 0 ]
) || failed=$((failed + 1))
for command in "generate - --prompt x" "generate $model --prompt x --table -" "inspect -" "solve - --bpd 3 -o $dir/x.table" \
    "merge $dir/m.stats - -o $dir/x.stats" "compare - $dir/m.table"; do
    # shellcheck disable=SC2086
    expect_sentence "$command" "only texts are read from standard input" "$KVCOBRA" $command </dev/null
done
piped() {
    printf 'hello there' | "$@"
}
expect "a prompt" 0 "$KVCOBRA" generate "$model" --prompt "hello there" --tokens 4 --ignore-eos --quiet
cp "$dir/out" "$dir/want"
for path in - /dev/stdin /proc/self/fd/0; do
    expect "a prompt from $path" 0 piped "$KVCOBRA" generate "$model" --prompt-file "$path" --tokens 4 --ignore-eos --quiet
    cmp -s "$dir/out" "$dir/want" && ok "is the same" || not_ok "is the same"
done
printf '\357\273\277hello there' >"$dir/marked.txt"
expect "a prompt behind a byte order mark" 0 "$KVCOBRA" generate "$model" --prompt-file "$dir/marked.txt" --tokens 4 --ignore-eos \
    --quiet
cmp -s "$dir/out" "$dir/want" && ok "is the same without it" || not_ok "is the same without it"
mkfifo "$dir/texts"
cat "$text" >"$dir/texts" &
expect "calibrate on a pipe" 0 "$KVCOBRA" calibrate "$model" --text "$dir/texts" --tokens 1024 --window 256 -o "$dir/p.stats" --quiet
wait $!
cmp -s "$dir/p.stats" "$dir/m.stats" && ok "makes the same statistics" || not_ok "makes the same statistics"
from_text() {
    "$@" <"$text"
}
expect "eval of standard input" 0 from_text "$KVCOBRA" eval "$model" --table "$dir/m.table" --text - --window 256 --tokens 1024 --json
expect_sentence "standard input is read once" "standard input is empty" from_text "$KVCOBRA" eval "$model" --table "$dir/m.table" \
    --text - --text - --window 256
expect_sentence "an endless text" "bytes that such a stream may have" "$KVCOBRA" generate "$model" --prompt-file /dev/zero
expect_sentence "nothing on standard input" "standard input is empty" "$KVCOBRA" generate "$model" --prompt-file - </dev/null
ln "$dir/m.stats" "$dir/alias"
expect_sentence "solve over its statistics" "m.stats is an input" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/m.stats"
expect_sentence "under another name" "alias is an input" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/alias"
expect_sentence "solve over the levels" "m.table is an input" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 --levels-from \
    "$dir/m.table" -o "$dir/m.table"
expect_sentence "calibrate over the model" "model.gguf is an input" "$KVCOBRA" calibrate "$model" --text "$text" -o "$model"
expect_sentence "calibrate over a text" "text.txt is an input" "$KVCOBRA" calibrate "$model" --text "$dir/short" --text "$text" \
    -o "$text"
expect_sentence "a page over the statistics" "m.stats is an input" "$KVCOBRA" inspect "$dir/m.table" --stats "$dir/m.stats" \
    --html "$dir/m.stats"
mkdir "$dir/full"
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=64k tmpfs "$dir/full" 2>/dev/null; then
    trap 'umount "$dir/full" 2>/dev/null || true; cleanup' EXIT
    echo precious >"$dir/full/x.table"
    expect_sentence "a full disk" "$dir/full/x.table" "$KVCOBRA" solve "$dir/m.stats" --bpd 3 --quiet -o "$dir/full/x.table"
    [ "$(cat "$dir/full/x.table")" = precious ] && ok "the existing file is unchanged" ||
        not_ok "the existing file is unchanged"
    [ "$(find "$dir/full" -type f | wc -l)" -eq 1 ] && ok "no other file is left" || not_ok "no other file is left"
    expect_sentence "a full disk for statistics" "$dir/full/x.stats" "$KVCOBRA" calibrate "$model" --text "$text" \
        --tokens 1024 --window 256 -o "$dir/full/x.stats" --quiet
    umount "$dir/full"
else
    skip "a full disk: mounting a small one takes root"
fi
full_stdout() {
    "$@" >/dev/full
}
for command in "--help" "inspect $dir/m.table --json" "generate $model --prompt x --tokens 4"; do
    # shellcheck disable=SC2086
    expect_sentence "stdout full: $command" "standard output" full_stdout "$KVCOBRA" $command --quiet
done

# sockets without a kvcobrad; the default of operators' commands is the units' socket, on which no daemon listens here
if [ ! -e /run/kvcobra/operator.sock ]; then
    expect_sentence "table without a socket" /run/kvcobra/operator.sock "$KVCOBRA" table list
    expect_sentence "drain without a socket" /run/kvcobra/operator.sock "$KVCOBRA" drain
    expect_sentence "status without a socket" /run/kvcobra/operator.sock "$KVCOBRA" status
    expect_sentence "top without a socket" /run/kvcobra/operator.sock "$KVCOBRA" top
else
    skip "no daemon at the default operator socket: one is there"
fi
expect_sentence "no daemon" "$dir/none.sock" "$KVCOBRA" status --socket "$dir/none.sock"
expect_sentence "a file for a socket" "$text" "$KVCOBRA" table list --socket "$text"
expect_sentence "a path too long for a socket" "ppp" "$KVCOBRA" status \
    --socket "/$(printf '%200s' '' | tr ' ' p)"
python3 - "$dir/stranger.sock" <<'PY' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen()
for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\xff" * 60000):
    c, _ = s.accept()
    c.recv(65536)
    if answer:
        c.send(answer)
    c.close()
PY
stranger=$!
wait_for "the other program's socket" [ -S "$dir/stranger.sock" ]
for what in "another protocol" "one that hangs up" "one that sends too much"; do
    expect_sentence "$what" "$dir/stranger.sock" timeout 60 "$KVCOBRA" status --socket "$dir/stranger.sock"
done
kill "$stranger" 2>/dev/null || true
wait "$stranger" 2>/dev/null || true

[ "$(cat "$dir/kept.table")" = precious ] && ok "existing files are unchanged" || not_ok "existing files are unchanged"
finish
