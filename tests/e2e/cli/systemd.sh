#!/bin/sh
# kvcobrad as a service of the machine's own systemd: ready by notification, its pool in the descriptor store over a restart
# and over SIGKILL. Skipped without systemd or root, and unless KVC_TEST_SYSTEMD=1 says that a transient unit may be made.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"

if [ ! -d /run/systemd/system ] || ! command -v systemd-run >/dev/null || [ "$(id -u)" -ne 0 ]; then
    skip "no systemd here, or not root"
    finish
fi
if [ "${KVC_TEST_SYSTEMD:-0}" != 1 ]; then
    skip "KVC_TEST_SYSTEMD=1 would make a transient unit"
    finish
fi

unit=kvcobra-test-$$
end_unit() {
    systemctl stop "$unit" 2>/dev/null || true
    systemctl reset-failed "$unit" 2>/dev/null || true
    cleanup
}
trap end_unit EXIT

model=$dir/model.gguf
"$TINY_MODEL" "$model"
"$KVCOBRA" calibrate "$model" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
head -c 1500 "$ROOT/LICENSE" >"$dir/prompt.txt"

expect "the unit is ready when systemd-run returns" 0 systemd-run --unit="$unit" --property=Type=notify \
    --property=NotifyAccess=main --property=FileDescriptorStoreMax=512 --property=Restart=on-failure \
    --property=RestartSec=100ms --property=WatchdogSec=30 "$KVCOBRAD" --socket "$dir/k.sock" \
    --operator-socket "$dir/o.sock" --state-dir "$dir" --keep-pool yes --pool-bytes 64M --quota-bytes 64M --arena-bytes 8M
"$KVCOBRA" table stage "$dir/3.table" --socket "$dir/o.sock" >/dev/null
"$KVCOBRA" table activate "$dir/3.table" --socket "$dir/o.sock" >/dev/null
generate() {
    "$KVCOBRA" generate "$model" --prompt-file "$dir/prompt.txt" --socket "$dir/k.sock" --tokens 1 --ignore-eos --json
}
expect "a prompt is published" 0 generate
expect_true "no prompt was published before" "j['matched_tokens'] == 0 and j['published_tokens'] > 0"

expect "systemctl restart" 0 systemctl restart "$unit"
expect "the prompt is found" 0 generate
expect_true "after a restart" "j['matched_tokens'] > 0"

systemctl kill --signal=KILL "$unit"
sleep_until=$(($(date +%s) + 60))
until systemctl is-active --quiet "$unit" && [ -S "$dir/k.sock" ]; do
    [ "$(date +%s)" -lt "$sleep_until" ] || break
done
expect "the prompt is found again" 0 generate
expect_true "after a SIGKILL" "j['matched_tokens'] > 0"
finish
