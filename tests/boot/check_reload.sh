# systemctl reload applies what can change while the daemon runs, and refuses a wrong file.

# quota_is BYTES: of every tenant that is not set otherwise
quota_is() {
    in_machine kvcobra status --json >"$dir/out" && python3 -c '
import json, sys
tenants = json.load(open(sys.argv[1]))["tenants"]
sys.exit(not tenants or any(t["quota_bytes"] != int(sys.argv[2]) for t in tenants))' "$dir/out" "$1"
}

configured=$(cat "$(at "$conf")")
check "reload: a prompt is published" as_user alice pages publish "$model" 1
check "reload: the quota before" quota_is $((64 << 20))
mark
configure "$(echo "$configured" | sed "s/^quota-bytes.*/quota-bytes = 48M/")"
check "reload: systemctl reload" in_machine systemctl reload "$unit"
expect_log "reload: the log names the setting" "event=setting-changed key=quota-bytes"
check "reload: the new quota applies" quota_is $((48 << 20))

mark
configure "$configured" "arena-bytes = 8M"
expect "reload: a file that sets a key twice" 1 in_machine systemctl reload "$unit"
expect_log "reload: the log has the sentence" "arena-bytes is set a second time"
check "reload: the service runs on" unit_is_up
check "reload: the old quota stays" quota_is $((48 << 20))
mark
in_machine systemctl kill --kill-who=main --signal=HUP "$unit"
expect_log "reload: SIGHUP alone" "event=reload-failed"
expect_log "reload: the sentence says what happens" "keeping the present configuration"
check "reload: the quota still stays" quota_is $((48 << 20))

# a start with a wrong file fails once, and says why
mark
expect "reload: a restart with the wrong file" 1 restart
expect_log "reload: the log of the start" "arena-bytes is set a second time"
check "reload: it is not started again" soon has_failed 78
in_machine systemctl reset-failed "kvcobrad*"
expect "reload: a client meanwhile" 1 as_user alice pages publish "$model" 1
wait_for "the end of the starts" in_machine systemctl --quiet is-failed kvcobrad.socket
starts=$(log | grep -c "event=failed")
check "reload: it starts kvcobrad at most 20 times ($starts times with ours)" test "$starts" -le 21
configure "$configured"
in_machine systemctl reset-failed "kvcobrad*"
check "reload: after the file is right" in_machine systemctl restart kvcobrad.service
check "reload: it serves" as_user alice pages publish "$model" 1
