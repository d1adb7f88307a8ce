#!/bin/sh
# Ctrl-C during a calibration: the current window is finished, the old output file stays, and a resumed run writes the same
# bytes as an uninterrupted one. A second Ctrl-C ends it at once. No partly written file stays in either case.
KVCOBRA=$1 TINY_MODEL=$3
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

"$TINY_MODEL" "$dir/model.gguf"
mkdir "$dir/output"
seq 1 120000 >"$dir/long.txt" # does not repeat itself

# interrupt SIGNAL TIMES COMMAND...: sends SIGNAL as soon as the command catches it. Status 0: the command ended as expected.
# Uses python3, since a shell starts background children with SIGINT ignored.
interrupt() {
    python3 - "$@" >"$dir/out" 2>"$dir/err" <<'PY'
import signal, subprocess, sys, time
number, times = getattr(signal, "SIG" + sys.argv[1]), int(sys.argv[2])
child = subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL)
def catches():
    for line in open(f"/proc/{child.pid}/status"):
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (number - 1) & 1
    return 0
for _ in range(times):
    while not catches():
        if child.poll() is not None:
            sys.exit("it ended before the signal was sent")
        time.sleep(0.002)
        if times == 2 and _ == 1: # the first signal removed the handler
            break
    child.send_signal(number)
try:
    code = child.wait(timeout=300)
except subprocess.TimeoutExpired:
    child.kill()
    sys.exit("it does not stop")
sys.exit(0 if code == 1 or (times == 2 and code == -number) else f"it ended with {code}")
PY
}

# the files of the folder on one line
listing() {
    (cd "$dir/output" && echo *)
}

calibrate() {
    "$@" "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 12000 --window 512 --samples 3000 \
        --metric output,attention -o "$dir/output/x.stats"
}

expect "a run in one go" 0 "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 12000 --window 512 \
    --samples 3000 --metric output,attention -o "$dir/whole.stats"
for signal in INT TERM; do
    echo precious >"$dir/output/x.stats"
    calibrate interrupt "$signal" 1 && ok "SIG$signal stops it" || not_ok "SIG$signal stops it"
    grep -q "the same command with --resume continues" "$dir/err" && ok "SIG$signal: it says how to continue" ||
        not_ok "SIG$signal: it says how to continue"
    [ "$(cat "$dir/output/x.stats")" = precious ] && ok "SIG$signal: the old file stays" ||
        not_ok "SIG$signal: the old file stays"
    [ "$(listing)" = "x.stats x.stats.partial" ] && ok "SIG$signal: the finished part is kept" ||
        not_ok "SIG$signal: the finished part is kept, not $(listing)"
    expect "SIG$signal: other options cannot resume" 1 "$KVCOBRA" calibrate "$dir/model.gguf" --text \
        "$dir/long.txt" --tokens 12000 --window 256 -o "$dir/output/x.stats" --resume
    expect "SIG$signal: it is resumed" 0 "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 12000 \
        --window 512 --samples 3000 --metric output,attention -o "$dir/output/x.stats" --resume
    expect "SIG$signal: the same bytes as in one go" 0 cmp "$dir/whole.stats" "$dir/output/x.stats"
    [ "$(listing)" = x.stats ] && ok "SIG$signal: no other file is left" || not_ok "SIG$signal: other files: $(listing)"
done
expect "no file to resume" 1 "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 12000 --window 512 \
    -o "$dir/output/x.stats" --resume

rm "$dir/output/x.stats"
interrupt INT 2 "$KVCOBRA" calibrate "$dir/model.gguf" --text "$dir/long.txt" --tokens 500000 --window 4096 \
    -o "$dir/output/x.stats" && ok "twice: it ends" || not_ok "twice: it ends"
case $(listing) in
'*' | x.stats.partial) ok "twice: no incomplete file" ;;
*) not_ok "twice: an incomplete file: $(listing)" ;;
esac
finish
