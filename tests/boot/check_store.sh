# The limit of the descriptor store. systemd closes what exceeds it and does not tell the daemon.

drop_in store "FileDescriptorStoreMax=9"
check "store: restart with a small store" restart
check "store: evict" in_machine kvcobra evict --yes
mark
check "store: prompts are published" as_user alice pages publish "$model" 12
check_text "store: all of them" "published 12288 tokens"
expect_log "store: the log names the setting and its value" "set FileDescriptorStoreMax=1153 in the unit"
check "store: status" in_machine kvcobra status
check_text "store: status says so" "volatile"
expect "store: the sentence is not repeated" 1 sh -c "[ $(log | grep -c not-stored) -ne 1 ]"
mark
check "store: restart" restart
check "store: it runs" unit_is_up
check "store: read" read_pages after 12
kept=$(sed -n 's/^found \([0-9]*\) tokens$/\1/p' "$dir/after.found")
check "store: a part is kept ($kept tokens)" test "$kept" -gt 0
check "store: a part is lost" test "$kept" -lt 11520
expect_log "store: the log says what was lost" "event=extent-damaged"

# systemd 254 and later tell the limit
mark
drop_in store "FileDescriptorStoreMax=9" "Environment=FDSTORE=9"
check "store: restart with FDSTORE" restart
expect_log "store: the start warns" "event=small-descriptor-store limit=9 wanted=1153"
mark
rm "$(at $unit_folder/$unit.d/store.conf)"
in_machine systemctl daemon-reload
check "store: restart with the unit's own limit" restart
check "store: prompts are published again" as_user alice pages publish "$model" 12
check "store: read" read_pages before 12
check "store: all tokens are found" found before 11520
check "store: restart" restart
check "store: read after the restart" read_pages after 12
check "store: all bytes are kept" cmp "$dir/before" "$dir/after"
expect "store: nothing was left out" 1 log_has not-stored
