# Sourced by check.sh and quickstart.sh: run COMMAND... runs a command as a child and waits for it, so that a signal to the
# script ends the command too. The exit status is that of the command.

child=
stop() {
    trap - EXIT INT TERM HUP
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
    [ -z "$child" ] || wait "$child" 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM HUP
run() {
    "$@" &
    child=$!
    code=0
    wait "$child" || code=$?
    child=
    return "$code"
}
