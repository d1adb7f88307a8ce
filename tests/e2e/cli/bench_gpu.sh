#!/bin/sh
# `kvcobra-lab bench service --gpu` on the stand-in driver, which the environment puts in the library path: the bench
# checks its results, names a missing part, and marks its numbers as those of the stand-in. No time is checked.
LAB=$1 KVCOBRAD=$2
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

service() {
    "$LAB" bench service --quick --daemon "$KVCOBRAD" --clients 2 "$@"
}
uuid=GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0
expect "swap on a GPU" 0 service swap --gpu first --json
expect_true "the GPU is named, and marked as the stand-in" "j['gpu']['uuid'] == '$uuid' and j['gpu']['stand_in'] is True"
expect_true "swap: all swaps, while sequences run, with four reads of each" \
    "j['swap']['swaps'] >= 10 and 4 * j['swap']['sequences'] == j['swap']['reads'] > 0"
expect_true "swap: none wrong, nothing failed" \
    "j['swap']['wrong'] == j['swap']['failed'] == 0 and not j['swap']['failure'] and len(j['asked']) == 3"
expect_true "swap: whole chunks are published" \
    "j['swap']['published_tokens'] > 0 and j['swap']['published_tokens'] % 64 == 0"
expect_true "swap: numbers are in order" \
    "all(0 < l['median'] <= l['p99'] <= l['p999'] <= l['max'] for s in j['swap']['us'].values() for l in [s, *s['of'].values()])"
printf 'keep-pool = yes\nstate-dir = %s/state\n' "$dir" >"$dir/keep.conf"
names=swap
if "$KVCOBRAD" --check-config "$dir/keep.conf" 2>"$dir/err" >/dev/null; then
    names=
    expect "restart with extents of a GPU kept" 0 service restart --gpu "$uuid" --json
    expect_true "restart: every page found, every hold kept" "j['restart']['restarts'] == 2 and \
j['restart']['pages'] == j['restart']['found'] == j['restart']['held'] == 2000"
    expect_true "restart: the sample has the written bytes" "j['restart']['sampled'] == j['restart']['identical'] == 4"
    expect_true "restart: generations grow" "j['restart']['lower_generations'] == 0 and len(j['asked']) == 5"
    expect_true "restart: the GPU answers after the daemon" \
        "0 < j['restart']['ms']['serving']['min'] < j['restart']['ms']['gpu']['min']"
else
    skip "bench service restart --gpu: $(cat "$dir/err")"
fi
expect "by a partition's name, in words" 0 service --gpu "MIG-${uuid#GPU-}" $names
if grep -q 'No number here is from a GPU' "$dir/out"; then ok "in words, too"; else not_ok "in words, too"; fi
if grep -Eq '^(load|memory): ' "$dir/out"; then not_ok "scenarios without a GPU are left out"; else ok "scenarios without a GPU are left out"; fi
expect "without --gpu the host's memory" 0 service swap --json
expect_true "and no GPU is named" "'gpu' not in j and j['swap']['failed'] == 0"

expect_sentence "no such GPU" "$uuid" service swap --gpu GPU-00000000-0000-0000-0000-000000000000
expect_sentence "not the name of a GPU" "nvidia-smi -L" service swap --gpu one
expect_sentence "no GPU" "CUDA" env STANDIN_DEVICES=0 "$LAB" bench service swap --gpu first
expect_sentence "no driver" "libcuda.so.1" env LD_LIBRARY_PATH= "$LAB" bench service swap --gpu first
expect_sentence "no mover" "$dir/none" service swap --gpu first --mover "$dir/none"
expect "the daemon's scenarios have no GPU" 2 service load --gpu first
expect "a mover without a GPU" 2 service swap --mover "$KVCOBRAD"
# an installation: programs in bin and libexec of any prefix
mkdir -p "$dir/bin" "$dir/libexec"
cp "$LAB" "$dir/bin/kvcobra-lab"
expect_sentence "a program without its mover names the folders" "../libexec" env \
    LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$(dirname "$LAB")/../client" "$dir/bin/kvcobra-lab" bench service swap --gpu first \
    --daemon "$KVCOBRAD"
cp "$(dirname "$LAB")/../mover/kvcobra-mover" "$dir/libexec/"
expect "an installed one finds it" 0 env LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$(dirname "$LAB")/../client" \
    "$dir/bin/kvcobra-lab" bench service swap --gpu first --quick --clients 1 --daemon "$KVCOBRAD"
finish
