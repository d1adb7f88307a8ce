#!/bin/sh
# Ctrl-C during a long calibration: it ends at once, the file that stood there stays, and nothing is beside it.
KVCOBRA=$1 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
mkdir "$dir/output"
echo precious >"$dir/output/x.stats"

# A fifo for a text would not be a regular file, so the moment is found by a text that takes long: 64 copies.
for _ in 1 2 3 4 5 6 7 8; do
    for _ in 1 2 3 4 5 6 7 8; do cat "$ROOT/LICENSE"; done
done >"$dir/long.txt"

for signal in INT TERM; do
    # python3: a shell starts background children with SIGINT ignored
    got=0
    python3 - "$signal" "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 700000 --window 4096 \
        -o "$dir/output/x.stats" >"$dir/out" 2>"$dir/err" <<'PY' || got=$?
import signal, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
try:
    child.wait(timeout=2)
    sys.exit("it was over before it could be stopped")
except subprocess.TimeoutExpired:
    pass
number = getattr(signal, "SIG" + sys.argv[1])
child.send_signal(number)
try:
    code = child.wait(timeout=20)
except subprocess.TimeoutExpired:
    child.kill()
    sys.exit("it does not stop")
sys.exit(0 if code == -number or code == 1 else f"it ended with {code}")
PY
    [ "$got" -eq 0 ] && ok "SIG$signal stops it" || not_ok "SIG$signal stops it"
    [ "$(cat "$dir/output/x.stats")" = precious ] && ok "SIG$signal: the old file stays" ||
        not_ok "SIG$signal: the old file stays"
    [ "$(find "$dir/output" -type f | wc -l)" -eq 1 ] && ok "SIG$signal: nothing is beside it" ||
        not_ok "SIG$signal: nothing is beside it"
done
finish
