# Sourced by the tests of this folder, which meson calls as NAME.sh KVCOBRA [KVCOBRAD TINY_MODEL SOURCE_ROOT]: cases, counts
# and a folder of their own. A test ends with `finish`.
set -eu

unset KVCOBRA_SOCKET KVCOBRA_OPERATOR_SOCKET XDG_RUNTIME_DIR # daemons of the user who runs the tests

LAB=${LAB:-$(dirname "${KVCOBRA:-.}")/../lab/kvcobra-lab} # of the same build

passed=0
failed=0
skipped=0
dir=$(mktemp -d)
cleanup() {
    if [ -n "${daemon_pid:-}" ]; then
        kill -TERM "$daemon_pid" 2>/dev/null || true
        wait "$daemon_pid" 2>/dev/null || true
    fi
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

ok() {
    passed=$((passed + 1))
    echo "ok   $*"
}

not_ok() {
    failed=$((failed + 1))
    echo "FAIL $*"
    [ -z "${shown:-}" ] || return 0 # the output of the command is above already
    shown=yes
    for stream in out err; do
        [ ! -s "$dir/$stream" ] || sed -n "1,20s/^/    $stream: /p" "$dir/$stream"
    done
}

skip() {
    skipped=$((skipped + 1))
    echo "skip $*"
}

# expect NAME STATUS COMMAND...: the exit status is STATUS; stdout and stderr go to $dir/out and $dir/err
expect() {
    name=$1
    want=$2
    shift 2
    got=0
    shown=
    "$@" >"$dir/out" 2>"$dir/err" || got=$?
    if [ "$got" -eq "$want" ]; then
        ok "$name"
    else
        not_ok "$name: exit status $got instead of $want"
    fi
}

# expect_sentence NAME WORD COMMAND...: status 1, nothing on stdout, and on stderr one line of kvcobra that contains WORD
expect_sentence() {
    name=$1
    word=$2
    shift 2
    got=0
    shown=
    "$@" >"$dir/out" 2>"$dir/err" || got=$?
    if [ "$got" -ne 1 ]; then
        not_ok "$name: exit status $got instead of 1"
    elif [ -s "$dir/out" ]; then
        not_ok "$name: something on stdout"
    elif [ "$(wc -l <"$dir/err")" -ne 1 ] || ! grep -Eq '^kvcobra(-lab)?: ' "$dir/err"; then
        not_ok "$name: not one sentence of kvcobra"
    elif ! grep -qF -- "$word" "$dir/err"; then
        not_ok "$name: the sentence does not name $word"
    else
        ok "$name"
    fi
}

# expect_json NAME KEY...: stdout of the last command is one JSON document with these keys at its top
expect_json() {
    name=$1
    shift
    if python3 - "$dir/out" "$@" <<'PY'
import json, sys
with open(sys.argv[1], encoding="utf-8") as f:
    document = json.load(f)
missing = [k for k in sys.argv[2:] if k not in document]
if missing:
    sys.exit("keys missing: " + " ".join(missing))
PY
    then
        ok "$name"
    else
        not_ok "$name: not the JSON it should be"
    fi
}

# expect_true NAME EXPRESSION: a Python expression is true; j is the JSON document of the last command
expect_true() {
    if python3 -c 'import json, math, sys
j = json.load(open(sys.argv[1], encoding="utf-8"))
sys.exit(not eval(sys.argv[2]))' "$dir/out" "$2"; then
        ok "$1"
    else
        not_ok "$1: false: $2"
    fi
}

# wait_for WHAT COMMAND...: repeats COMMAND until it succeeds, at most for a minute, far longer than a busy machine needs
wait_for() {
    what=$1
    shift
    wait_end=$(($(date +%s) + 180))
    until "$@" 2>/dev/null; do
        if [ "$(date +%s)" -ge "$wait_end" ]; then
            not_ok "waiting for $what"
            return
        fi
        python3 -c 'import time; time.sleep(0.02)'
    done
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || exit 77
    exit 0
}
