#!/bin/sh
# A user's own daemon and commands without a single path: kvcobrad --user, conf.d, and what the sentences name.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run"
unset XDG_STATE_HOME XDG_CONFIG_HOME
settings=$HOME/.config/kvcobra
mkdir -p "$XDG_RUNTIME_DIR" "$settings/kvcobrad.conf.d"
echo "pool-bytes = 32M" >"$settings/kvcobrad.conf"
echo "pool-bytes = 64M" >"$settings/kvcobrad.conf.d/10-pool.conf"
echo "arena-bytes = 8M" >"$settings/kvcobrad.conf.d/20-arena.conf"

"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"

# without a daemon, a sentence says how to get one
if [ ! -e /run/kvcobra/operator.sock ]; then
    expect_sentence "status without a daemon" "kvcobra up" "$KVCOBRA" status
fi
if [ ! -d /run/kvcobra ]; then
    expect "the default folder does not exist" 1 "$KVCOBRAD"
    grep -q "kvcobrad --user" "$dir/err" && ok "kvcobrad names --user" || not_ok "kvcobrad names --user"
fi

mkfifo "$dir/ready"
"$KVCOBRAD" --user --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
daemon_pid=$!
[ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
[ "$(stat -c %a "$XDG_RUNTIME_DIR/kvcobra")" = 700 ] && ok "the folder is private" || not_ok "the folder is private"
[ -e "$HOME/.local/state/kvcobra/secret" ] && ok "the state is in the home" || not_ok "the state is in the home"
for field in "socket=$XDG_RUNTIME_DIR/kvcobra/kvcobra.sock" "operator_socket=$XDG_RUNTIME_DIR/kvcobra/operator.sock" \
    "metrics=none" "state_dir=$HOME/.local/state/kvcobra" "config=$settings/kvcobrad.conf"; do
    grep event=serving "$dir/daemon.log" | grep -qF "$field" && ok "the log has $field" || not_ok "the log has $field"
done

python3 - "$dir/daemon.log" <<'PY' && ok "each line of the log has its time first" || not_ok "each line of the log has its time first"
import re, sys
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
sys.exit(not lines or not all(re.fullmatch(r'time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z level=[a-z]+ event=[a-z-]+'
                                           r'( [a-z_]+=([^ "=]+|"([^"\\]|\\.)*"))*', line) for line in lines))
PY
expect "stage without a path" 0 "$KVCOBRA" table stage "$dir/3.table"
expect "activate without a path" 0 "$KVCOBRA" table activate "$dir/3.table"
for run in first second; do
    expect "$run generate without a path" 0 "$KVCOBRA" generate "$dir/model.gguf" --prompt-file "$dir/prompt.txt" --share --tokens 4 \
        --ignore-eos --json
done
expect_true "the second found what the first published" "j['matched_tokens'] > 0"
expect "status without a path" 0 "$KVCOBRA" status --json
expect_true "the drop-ins count, the later one more" "j['pool_bytes'] == 64 << 20 and j['tenants'][0]['quota_bytes'] == 64 << 20"

expect_sentence "operators on the clients' socket" "use the socket of operators, $XDG_RUNTIME_DIR/kvcobra/operator.sock" \
    env KVCOBRA_OPERATOR_SOCKET="$XDG_RUNTIME_DIR/kvcobra/kvcobra.sock" "$KVCOBRA" clients
expect_sentence "clients on the operators' socket" "use the socket of clients, $XDG_RUNTIME_DIR/kvcobra/kvcobra.sock" \
    env KVCOBRA_SOCKET="$XDG_RUNTIME_DIR/kvcobra/operator.sock" "$KVCOBRA" generate "$dir/model.gguf" --prompt x --share
expect_sentence "the variable goes before the folder" "$dir/none.sock" \
    env KVCOBRA_OPERATOR_SOCKET="$dir/none.sock" "$KVCOBRA" status
expect "the option goes before the variable" 0 env KVCOBRA_OPERATOR_SOCKET="$dir/none.sock" "$KVCOBRA" status --socket \
    "$XDG_RUNTIME_DIR/kvcobra/operator.sock"

# each session of the two clients has a line that opens it and one that closes it, with a number that is used once
numbers() {
    grep "event=session-$1" "$dir/daemon.log" | sed 's/.* session=\([0-9]*\) .*/\1/' | sort
}
closed_all() {
    numbers open >"$dir/opened" && numbers close >"$dir/closed" && [ -s "$dir/opened" ] && cmp -s "$dir/opened" "$dir/closed"
}
wait_for "the end of the sessions" closed_all
[ "$(uniq "$dir/opened" | wc -l)" -ge 2 ] && [ -z "$(uniq -d "$dir/opened")" ] && ok "numbers of sessions are used once" ||
    not_ok "numbers of sessions are used once"

# the configuration: printed, and checked
expect "print the settings" 0 "$KVCOBRAD" --user --print-config
cp "$dir/out" "$dir/printed.conf"
grep -qx "pool-bytes = 64M" "$dir/out" && ok "a printed setting" || not_ok "a printed setting"
expect "read them again" 0 "$KVCOBRAD" --config "$dir/printed.conf" --print-config
cmp -s "$dir/out" "$dir/printed.conf" && ok "they are the same" || not_ok "they are the same"
mkdir "$dir/beside"
cp "$KVCOBRAD" "$dir/beside/kvcobrad"
expect "settings of a daemon without a mover" 0 "$dir/beside/kvcobrad" --user --print-config
grep -q "^mover = $dir" "$dir/out" && not_ok "the built-in path" || ok "the built-in path"
printf '#!/bin/sh\n' >"$dir/beside/kvcobra-mover"
chmod +x "$dir/beside/kvcobra-mover"
expect "settings of a daemon beside its mover" 0 "$dir/beside/kvcobrad" --user --print-config
grep -qx "mover = $dir/beside/kvcobra-mover" "$dir/out" && ok "the mover beside it" || not_ok "the mover beside it"
mkdir "$dir/libexec"
mv "$dir/beside/kvcobra-mover" "$dir/libexec/"
expect "settings of a daemon of a tarball or a wheel" 0 "$dir/beside/kvcobrad" --user --print-config
grep -qx "mover = $dir/libexec/kvcobra-mover" "$dir/out" && ok "the mover in libexec" || not_ok "the mover in libexec"
printf 'pool_bytes = 1G\nlease-ms = 1\n' >"$dir/wrong.conf"
expect "a wrong file" 1 "$KVCOBRAD" --check-config "$dir/wrong.conf"
grep -q "line 1: .*did you mean pool-bytes?" "$dir/err" && grep -q "line 2: lease-ms" "$dir/err" &&
    ok "all errors are shown" || not_ok "all errors are shown"
gib=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1048576 + 1))
if [ "$gib" -le 512 ]; then # the most that spans of 2 MiB can divide
    echo "pool-bytes = ${gib}G" >"$dir/large.conf"
    expect "a pool above all memory" 0 "$KVCOBRAD" --check-config "$dir/large.conf"
    grep -q "warning: --pool-bytes is $gib.00 GiB, and this machine" "$dir/out" && ok "a warning" || not_ok "a warning"
fi
expect "a mistyped option" 2 "$KVCOBRAD" --sokcet x
grep -qF "did you mean --socket?" "$dir/err" && ok "the nearest option" || not_ok "the nearest option"
# a folder of the variable that is not there is not made, and another one is used
expect "no runtime folder" 0 env XDG_RUNTIME_DIR="$dir/none" "$KVCOBRAD" --user --print-config
grep -Eq "^socket = (/run/user/$(id -u)/kvcobra|/tmp/kvcobra-$(id -u))/kvcobra.sock" "$dir/out" && ok "another one is used" ||
    not_ok "another one is used"
chmod 755 "$XDG_RUNTIME_DIR/kvcobra"
expect "a folder that others may read" 78 "$KVCOBRAD" --user
grep -q "chmod 0700" "$dir/err" && ok "the sentence has the remedy" || not_ok "the sentence has the remedy"
chmod 700 "$XDG_RUNTIME_DIR/kvcobra"
expect "no home" 78 env HOME="$dir/none" "$KVCOBRAD" --user
grep -q "$dir/none of the environment variable HOME" "$dir/err" && ok "it is named" || not_ok "it is named"
[ ! -e "$dir/none" ] && ok "neither was made" || not_ok "neither was made"
expect "no folder of the user" 1 env -u HOME "$KVCOBRAD" --user --print-config
finish
