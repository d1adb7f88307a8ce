#!/bin/sh
# Files of another format version: refused with both numbers, and a daemon that finds them starts (docs/compatibility.md).
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

export KVCOBRA_SOCKET="$dir/kvcobra.sock" KVCOBRA_OPERATOR_SOCKET="$dir/operator.sock"

# renumber FILE NEW: a copy whose version, the number behind the 8 bytes of magic, is 9
renumber() {
    python3 - "$1" "$2" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
data[8:12] = struct.pack("<I", 9)
open(sys.argv[2], "wb").write(data)
PY
}

# start_daemon: with the state folder; its log begins anew
start_daemon() {
    rm -f "$dir/ready"
    mkfifo "$dir/ready"
    "$KVCOBRAD" --socket "$KVCOBRA_SOCKET" --operator-socket "$KVCOBRA_OPERATOR_SOCKET" --pool-bytes 64M --arena-bytes 8M \
        --state-dir "$dir/state" --spare-extents 0 --ready-fd 3 3>"$dir/ready" 2>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "$1: the daemon is ready" || not_ok "$1: the daemon is ready"
}
stop_daemon() {
    kill -TERM "$daemon_pid"
    wait "$daemon_pid" || not_ok "the daemon ends with status 0"
    daemon_pid=
}

"$TINY_MODEL" "$dir/model.gguf"
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" calibrate "$dir/model.gguf" --text "$ROOT/LICENSE" --tokens 1024 --window 256 --moments-only -o "$dir/m.moments" \
    --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
for file in m.stats m.moments 3.table; do
    expect "$file can be read" 0 "$KVCOBRA" inspect "$dir/$file"
    renumber "$dir/$file" "$dir/other.$file"
done
expect_sentence "a table: the other version" "format version 9" "$KVCOBRA" inspect "$dir/other.3.table"
grep -q "this program reads versions 2 and 3: solve it again" "$dir/err" && ok "a table: what to do" || not_ok "a table: what to do"
expect_sentence "statistics: the other version" "has version 9" "$KVCOBRA" inspect "$dir/other.m.stats"
grep -q "this program reads version 3.*kvcobra calibrate" "$dir/err" && ok "statistics: what to do" || not_ok "statistics: what to do"
expect_sentence "statistics: solve" "has version 9" "$KVCOBRA" solve "$dir/other.m.stats" --bpd 3 -o "$dir/none.table"
expect_sentence "moments: the other version" "has version 9" "$KVCOBRA" inspect "$dir/other.m.moments"
grep -q "this program reads versions 1 and 2" "$dir/err" && ok "moments: this program's" || not_ok "moments: this program's"

mkdir -m 700 "$dir/state"
start_daemon "a new folder"
expect "stage" 0 "$KVCOBRA" table stage "$dir/3.table"
digest=$(sed -n 's/^staged \([0-9a-f]*\)$/\1/p' "$dir/out")
expect "activate" 0 "$KVCOBRA" table activate "$dir/3.table"
expect_sentence "stage: the other version" "format version 9" "$KVCOBRA" table stage "$dir/other.3.table"
stop_daemon

cp "$dir/state/active" "$dir/active"
sed -i '1s/[0-9]*$/9/' "$dir/state/active"
start_daemon "another active set"
grep -q "event=state-unreadable.*/active" "$dir/daemon.log" && ok "active set: in the log" || not_ok "active set: in the log"
expect "active set: the tables are here" 0 "$KVCOBRA" table list
grep -q "^$(echo "$digest" | cut -c 1-12).*verified" "$dir/out" && ok "active set: verified, not active" || not_ok "active set: verified, not active"
expect "active set: activate again" 0 "$KVCOBRA" table activate "$digest"
stop_daemon

renumber "$dir/state/tables/$digest.kvct" "$dir/changed"
cp "$dir/changed" "$dir/state/tables/$digest.kvct"
start_daemon "another table"
grep -q "event=table-unreadable.*version 9" "$dir/daemon.log" && ok "table: in the log" || not_ok "table: in the log"
expect "table: staged again" 0 "$KVCOBRA" table stage "$dir/3.table"
expect "table: activated again" 0 "$KVCOBRA" table activate "$dir/3.table"
stop_daemon
finish
