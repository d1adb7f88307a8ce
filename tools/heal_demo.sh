#!/bin/sh
# Shows a service that heals itself: a table calibrated on prose serves code, and a table made from the moments of
# that traffic replaces it, while clients run. Before, a table of 1 bit is tried, and the service returns by itself to the
# first one. It fails if the healed table is worse by more than chance: if the whole 95 % interval of the difference of KL
# on text that no table has seen is above 0. With --quick it does not judge, and the canary may err by 15 % more than the
# active table instead of 5: they encode different prompts, and so few tokens differ by chance.
#
#     sh tools/heal_demo.sh [--model GGUF] [--kvcobra PATH] [--kvcobrad PATH] [--base FILE]... [--live FILE]...
#         [--judge FILE] [--predict head|layer|none] [--bpd BITS] [--quick]
#
# --base: texts that the first table is calibrated on (default: README.md and DESIGN.md of this source tree).
# --live: texts that clients send (default: the C sources of alloc/). --judge: text of the same kind, which no client
# sends and no table was made from; KL is measured on it (default: the C sources of daemon/). --predict, --bpd: of the
# first table (default: head, 3). --quick: a tenth of the tokens, for a test; its figures say little.
# An installation without these sources needs --base, --live and --judge. Everything runs on private sockets in a
# temporary folder, which is removed. It takes some ten minutes on two cores; no step waits longer than 15 minutes.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
model=${XDG_CACHE_HOME:-$HOME/.cache}/kvcobra/SmolLM2-135M-Instruct.Q4_1.gguf
kvcobra=kvcobra kvcobrad=kvcobrad quick='' margin=5 base='' live='' judge='' predict=head bpd=3
calibrate_tokens=12288 window=1024 eval_tokens=4096 prompt_bytes=3600 moments_tokens=16384 trial_tokens=2048

die()
{
    echo "heal_demo.sh: $*" >&2
    exit 1
}

newline='
'
while [ $# -gt 0 ]; do
    option=$1
    [ "$option" = --quick ] || [ $# -ge 2 ] || die "$option needs a value; the top of $0 has the options"
    case $option in
    --model) model=$2 ;;
    --kvcobra) kvcobra=$2 ;;
    --kvcobrad) kvcobrad=$2 ;;
    --base) base=$base$2$newline ;;
    --live) live=$live$2$newline ;;
    --judge) judge=$2$newline ;;
    --predict) predict=$2 ;;
    --bpd) bpd=$2 ;;
    --quick) quick=yes margin=15 calibrate_tokens=2048 window=256 eval_tokens=512 prompt_bytes=1200 moments_tokens=1024 trial_tokens=512 ;;
    *) die "$option is no option; the top of $0 has the options" ;;
    esac
    [ "$option" = --quick ] || shift
    shift
done
[ -r "$model" ] || die "there is no model at $model; 'sh tools/fetch_model.sh' downloads it, or name another with --model"
command -v "$kvcobra" >/dev/null || die "there is no $kvcobra: name it with --kvcobra"
command -v "$kvcobrad" >/dev/null || die "there is no $kvcobrad: name it with --kvcobrad"
[ -n "$base" ] || base=$root/README.md$newline$root/DESIGN.md$newline
[ -n "$live" ] || live=$(ls "$root"/alloc/*/*.c 2>/dev/null || true)$newline
[ -n "$judge" ] || judge=$(ls "$root"/daemon/*/*.c 2>/dev/null || true)$newline

dir=$(mktemp -d)
daemon='' clients=''
finish()
{
    : >"$dir/stop"
    [ -z "$clients" ] || wait "$clients" || true
    [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" || true; }
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

heading()
{
    printf '\n== %s\n\n' "$*"
}

run()
{
    echo "\$ kvcobra $*"
    "$kvcobra" "$@"
}

# The texts of a list of files, one after another, without what is not ASCII: a cut may not divide a character.
collect()
{
    printf '%s' "$1" | while IFS= read -r file; do
        [ -z "$file" ] || cat -- "$file" || exit 1
    done | LC_ALL=C tr -cd '\11\12\40-\176' >"$2"
    [ "$(wc -c <"$2")" -gt $((4 * prompt_bytes)) ] || die "too little text in: $(printf '%s' "$1" | tr '\n' ' ')"
}

# Sends prompts of live.txt until the file "stop" exists. No two prompts have a common beginning, so that all are encoded.
send()
{
    i=0
    bytes=$(wc -c <"$dir/live.txt")
    while [ ! -e "$dir/stop" ]; do
        tail -c +$(((i * (prompt_bytes + 97)) % (bytes - prompt_bytes) + 1)) "$dir/live.txt" | head -c "$prompt_bytes" \
            >"$dir/prompt"
        if "$kvcobra" generate "$model" --prompt-file "$dir/prompt" --socket "$dir/clients" --report 100 --moments \
            --tokens 4 --ignore-eos --quiet >/dev/null 2>>"$dir/errors"; then
            echo answered >>"$dir/answered"
        else
            echo failed >>"$dir/failed"
        fi
        i=$((i + 1))
    done
}

# Waits until clients have sent enough moments: at most 15 minutes.
wait_for_moments()
{
    for _ in $(seq 900); do
        if "$kvcobra" recalibrate --dry-run --yes --min-tokens "$moments_tokens" >"$dir/out" 2>"$dir/why"; then
            cat "$dir/out"
            return 0
        fi
        grep -q "tokens were reported\|reported moments" "$dir/why" || die "no better table: $(cat "$dir/out" "$dir/why")"
        [ ! -s "$dir/failed" ] || die "a request failed: $(tail -n 1 "$dir/errors")"
        sleep 1
    done
    die "clients did not report $moments_tokens tokens within 15 minutes"
}

heading "A table of $bpd bits for prose"
collect "$base" "$dir/base.txt"
collect "$live" "$dir/live.txt"
collect "$judge" "$dir/judge.txt"
run calibrate "$model" --text "$dir/base.txt" --tokens "$calibrate_tokens" --window "$window" -o "$dir/base.stats" --quiet
run solve "$dir/base.stats" --bpd "$bpd" --predict "$predict" -o "$dir/base.table" --quiet
run solve "$dir/base.stats" --bpd 1 --predict "$predict" -o "$dir/bad.table" --quiet

heading "A service with this table, and clients that send code"
mkfifo "$dir/ready"
"$kvcobrad" --socket "$dir/clients" --operator-socket "$dir/operator" --pool-bytes 512M --quota-bytes 512M \
    --moments-bytes 256M --log-level 4 --ready-fd 3 3>"$dir/ready" &
daemon=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] || die "kvcobrad did not start"
export KVCOBRA_OPERATOR_SOCKET="$dir/operator"
run table stage "$dir/base.table"
run table activate "$dir/base.table"
: >"$dir/answered"
: >"$dir/failed"
send &
clients=$!
echo "waiting for the moments of $moments_tokens tokens; a client may report every 2 s"
wait_for_moments

heading "The drift: the error that clients measure, beside the one that the table expects"
run table list
run eval "$model" --table "$dir/base.table" --text "$dir/judge.txt" --tokens "$eval_tokens" --window "$window" --recent 0

heading "A canary that is worse: a table of 1 bit, which the service must leave by itself"
status=0
run recalibrate --yes --table "$dir/bad.table" --canary-tokens "$trial_tokens" --canary-share 50 --wait 900 >"$dir/out" ||
    status=$?
cat "$dir/out"
if [ "$status" -ne 3 ] || ! grep -q "^rolled back" "$dir/out"; then
    die "the service did not return to the first table"
fi

heading "A table from live moments: shadow, canary, swap"
run recalibrate --yes --min-tokens "$moments_tokens" --margin "$margin" --shadow-tokens "$trial_tokens" --share 100 \
    --canary-tokens "$trial_tokens" --canary-share 50 --wait 900 -o "$dir/healed.table" || die "the table was not healed"
run table list

heading "KL to the exact model on text of this kind that no table has seen"
half=$(($(wc -c <"$dir/judge.txt") / 2))
head -c "$half" "$dir/judge.txt" >"$dir/judge-1.txt"
tail -c "$half" "$dir/judge.txt" >"$dir/judge-2.txt"
run eval "$model" --table "$dir/base.table" --table "$dir/healed.table" --text "$dir/judge-1.txt" --text "$dir/judge-2.txt" \
    --tokens "$eval_tokens" --window "$window" --recent 0 >"$dir/out"
cat "$dir/out"
# the row below "minus base": the name, the difference, "LOW to HIGH" or "LOW-HIGH"
worse=$(awk '/^minus base/ { below = 1; next } below && $1 == "healed" { sub(/-[0-9.]*$/, "", $3); print ($3 > 0); exit }' "$dir/out")
[ -n "$worse" ] || die "eval printed no difference of the healed table"
: >"$dir/stop"
wait "$clients" || true
clients=''
echo
echo "The table of 1 bit was rolled back, the healed one stays. Meanwhile $(wc -l <"$dir/answered") requests were answered, $(wc -l <"$dir/failed") failed."
[ ! -s "$dir/failed" ] || die "requests failed: $(tail -n 1 "$dir/errors")"
[ -n "$quick" ] || [ "$worse" = 0 ] || die "the healed table is worse on text that no table has seen, by more than chance"
