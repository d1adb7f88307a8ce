#!/bin/sh
# kvcobra up and down: a daemon in the background, found and ended again; folders that another user prepared; what fails.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run"
unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME HF_HOME HF_HUB_CACHE KVCOBRA_PYTHON
mkdir -m 700 "$HOME" "$XDG_RUNTIME_DIR" "$dir/bin"
mkdir -p "$HOME/.config/kvcobra"
echo "pool-bytes = 128M" >"$HOME/.config/kvcobra/kvcobrad.conf"
own=$XDG_RUNTIME_DIR/kvcobra
case $KVCOBRA in /*) ;; *) KVCOBRA=$PWD/$KVCOBRA ;; esac
case $KVCOBRAD in /*) ;; *) KVCOBRAD=$PWD/$KVCOBRAD ;; esac
trap '"$KVCOBRA" down >/dev/null 2>&1 || true; cleanup' EXIT
up() {
    "$KVCOBRA" up --daemon "$KVCOBRAD" "$@"
}

# ---- a life
expect "up" 0 up --json
expect_true "it was started" 'j["started"] and j["pool_bytes"] == 128 << 20'
expect_true "its log is named" 'j["log"] == "'"$own/kvcobrad.log"'"'
grep -q event=serving "$own/kvcobrad.log" && ok "the log is there" || not_ok "the log is there"
[ "$(stat -c '%a %U' "$own")" = "700 $(id -un)" ] && ok "the folder is private" || not_ok "the folder is private"
[ "$(stat -c %a "$own/kvcobrad.log")" = 600 ] && ok "the log is private" || not_ok "the log is private"
expect "a client finds it" 0 "$KVCOBRA" ping
expect "an operator finds it" 0 "$KVCOBRA" status
expect "up again" 0 up --json
expect_true "it runs already" 'not j["started"]'
expect "as text" 0 env KVCOBRA_SOCKET=/elsewhere "$KVCOBRA" up
grep -q "up to 128.0 MiB" "$dir/out" && grep -q "$own/kvcobra.sock" "$dir/out" && ok "pool and socket" || not_ok "pool and socket"
grep -q "setting exact" "$dir/out" && ok "what is shared without a table" || not_ok "what is shared without a table"
"$KVCOBRAD" --user --print-config | grep -qx "exact = yes" && ok "exact = yes" || not_ok "exact = yes"
grep -q "KVCOBRA_SOCKET is /elsewhere" "$dir/err" && ok "the variable is named" || not_ok "the variable is named"
expect "down" 0 "$KVCOBRA" down --json
expect_true "it has ended" 'j["ended"] and j["pid"] > 0'
expect "no daemon answers" 1 "$KVCOBRA" ping --socket "$own/kvcobra.sock"
expect "down again" 0 "$KVCOBRA" down
grep -q "no kvcobrad of this user runs" "$dir/out" && ok "it says so" || not_ok "it says so"

# a socket that a killed daemon left
expect "up" 0 up --json
kill -KILL "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$dir/out")"
expect "up after a kill" 0 up --json
expect_true "a new one was started" 'j["started"]'
[ -s "$own/kvcobrad.log.old" ] && ok "the log of the killed one is kept" || not_ok "the log of the killed one is kept"
expect "down" 0 "$KVCOBRA" down

# two at once: one daemon
up --json >"$dir/first" &
first=$!
up --json >"$dir/second"
wait "$first"
python3 - "$dir/first" "$dir/second" <<'PY' && ok "two at once start one daemon" || not_ok "two at once start one daemon"
import json, sys
a, b = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
sys.exit(not (a["pid"] == b["pid"] and a["started"] != b["started"]))
PY
expect "down" 0 "$KVCOBRA" down

# ---- what fails says why, and starts nothing
expect_sentence "no daemon" "$dir/none is not a program" "$KVCOBRA" up --daemon "$dir/none"
cp "$KVCOBRA" "$dir/bin/kvcobra"
expect_sentence "no daemon anywhere" "there is no kvcobrad beside" env PATH="$dir/bin" \
    LD_LIBRARY_PATH="$(dirname "$KVCOBRA")/../client:${LD_LIBRARY_PATH:-}" "$dir/bin/kvcobra" up
printf '#!/nothing\n' >"$dir/bin/broken"
chmod +x "$dir/bin/broken"
expect_sentence "a daemon that does not run" "$dir/bin/broken could not be run" "$KVCOBRA" up --daemon "$dir/bin/broken"
echo "lease-ms = 1" >>"$HOME/.config/kvcobra/kvcobrad.conf"
expect_sentence "a wrong setting" "lease-ms" up
sed -i '$d' "$HOME/.config/kvcobra/kvcobrad.conf"
mkdir "$dir/files"
for model in "$dir/none.gguf" nowhere/nothing ./a/b a/b/c; do
    expect_sentence "a model that is not there: $model" "$model" up --model "$model"
done
expect_sentence "a hub name" "hf download nowhere/nothing" up --model nowhere/nothing
expect_sentence "a folder without the Python package" "pip install" up --model "$dir/files"
[ ! -e "$own/kvcobra.sock" ] && ok "nothing was started" || not_ok "nothing was started"

rm -r "$own"
for kind in link file fifo open; do
    case $kind in
    link) ln -s "$dir/files" "$own" ;;
    file) : >"$own" ;;
    fifo) mkfifo "$own" ;;
    open) mkdir "$own" && chmod 777 "$own" ;;
    esac
    expect_sentence "a folder that is no folder of this user: $kind" "$own" up
    expect_sentence "down refuses it too: $kind" "$own" "$KVCOBRA" down
    rm -rf "$own"
done
if [ "$(id -u)" -eq 0 ]; then
    mkdir -m 700 "$own"
    chown 65534 "$own"
    expect_sentence "a folder of another user" "belongs to user 65534" up
    rm -r "$own"
    if mount -t tmpfs -o size=64k,mode=700 tmpfs "$XDG_RUNTIME_DIR" 2>/dev/null; then
        trap 'umount "$dir/run" 2>/dev/null || true; cleanup' EXIT
        head -c 1000000 /dev/zero >"$XDG_RUNTIME_DIR/fill" 2>/dev/null || true
        expect_sentence "a full disk" "No space left on device" up
        umount "$XDG_RUNTIME_DIR"
    else
        skip "a full disk: mounting a small one is not permitted"
    fi
else
    skip "another user's folder and a full disk take root"
fi
trap '"$KVCOBRA" down >/dev/null 2>&1 || true; cleanup' EXIT

# ---- a table of a model
"$TINY_MODEL" "$dir/files/model.gguf"
expect "up with a model" 0 up --wait --model "$dir/files/model.gguf"
expect "tables" 0 "$KVCOBRA" table list --json
expect_true "one is active" '[t["state"] for t in j] == ["active"]'
expect "up with the same model" 0 up --wait --model "$dir/files/model.gguf"
grep -q "a table of $dir/files/model.gguf is active already" "$dir/out" && ok "nothing is made twice" || not_ok "nothing is made twice"
expect "generate finds the daemon and the table" 0 "$KVCOBRA" generate "$dir/files/model.gguf" --prompt x --share --tokens 2 --ignore-eos
# its clients are its own user's: nothing to separate, and nothing to report
"$KVCOBRA" doctor >"$dir/out" || true # its status depends on the machine
! grep -q "not isolated" "$dir/out" && ! grep -q not-isolated "$own/kvcobrad.log" && ok "no word of isolation" || not_ok "no word of isolation"
expect "down" 0 "$KVCOBRA" down

# ---- no room for a table
if [ "$(id -u)" -eq 0 ] && mkdir "$dir/small" && mount -t tmpfs -o size=64k,mode=700 tmpfs "$dir/small" 2>/dev/null; then
    trap '"$KVCOBRA" down >/dev/null 2>&1 || true; umount "$dir/small" 2>/dev/null || true; cleanup' EXIT
    expect "statistics and a table" 0 "$KVCOBRA" calibrate --quick "$dir/files/model.gguf" --quiet -o "$dir/quick.stats"
    expect "up" 0 env XDG_STATE_HOME="$dir/small" "$KVCOBRA" up --daemon "$KVCOBRAD"
    expect_sentence "a full state folder" "No space left on device" "$KVCOBRA" table stage "$dir/quick.table"
    grep -q "event=not-stored.*No space left on device" "$own/kvcobrad.log" && ok "the log says so, too" || not_ok "the log says so, too"
    expect "down" 0 "$KVCOBRA" down
    umount "$dir/small"
    trap '"$KVCOBRA" down >/dev/null 2>&1 || true; cleanup' EXIT
else
    skip "a full state folder: mounting a small one takes root"
fi

# ---- in the background
is_state() {
    up --json >"$dir/state" && grep -q "\"state\": \"$1\"" "$dir/state"
}
expect "a table in the background" 0 up --json --model "$dir/files/model.gguf"
expect_true "its state and its log" "(j['started'] and j['table']['model'] == '$dir/files/model.gguf' and
    j['table']['state'] in ('working', 'active') and j['table']['log'] == '$own/table.log')"
# by another name of the file: the table that is in the making is not made twice
expect "up that waits meanwhile" 0 sh -euc 'cd "$1" && exec "$2" up --wait --model model.gguf' sh "$dir/files" "$KVCOBRA"
! grep -q "^calibrating with" "$dir/out" && grep -q "a table of model.gguf is active already" "$dir/out" &&
    ok "it waits for the one in the background" || not_ok "it waits for the one in the background"
wait_for "it becomes active" is_state active
expect "as text" 0 up
grep -q "^table     a table of $dir/files/model.gguf is active" "$dir/out" && ok "up says so" || not_ok "up says so"
[ "$(stat -c %a "$own/table.log")" = 600 ] && ok "its log is private" || not_ok "its log is private"
cp "$dir/files/model.gguf" "$dir/files/cut.gguf"
truncate -s 100000 "$dir/files/cut.gguf"
expect "a model that is damaged" 0 up --model "$dir/files/cut.gguf"
wait_for "it fails" is_state failed
expect "as text" 0 up
grep -q "^table     of $dir/files/cut.gguf was not made: " "$dir/out" && grep -q "more in" "$dir/out" && ok "up says why" || not_ok "up says why"

# a job that takes long: a Python that stops itself stands for the calibration of a folder
printf '#!/bin/sh\necho "calibrating  12 %%" >&2\nexec sleep 6173\n' >"$dir/bin/python"
chmod +x "$dir/bin/python"
python3 "$(dirname "$0")/model_folder.py" make "$dir/files" plain
export KVCOBRA_PYTHON="$dir/bin/python"
expect "a folder" 0 up --model "$dir/files/plain"
says_progress() {
    up >"$dir/out" && grep -q "^table     of $dir/files/plain: calibrating  12 %; more in" "$dir/out"
}
wait_for "up says how far it is" says_progress
expect "the same again" 0 up --model "$dir/files/plain"
expect_sentence "another model meanwhile" "is in the making" up --model "$dir/files/model.gguf"
expect "down" 0 "$KVCOBRA" down
grep -q "the table that was in the making was given up" "$dir/out" && ok "down ends it" || not_ok "down ends it"
is_gone() {
    ! pgrep -f '^sleep 6173$' >/dev/null
}
wait_for "its steps end" is_gone
finish
