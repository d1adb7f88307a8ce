# What keeps the pool and what loses it. The bytes of pages are compared:

check "restart: two prompts are published" as_user alice pages publish "$model" 2
check_text "restart: their tokens" "published 2048 tokens"
check "restart: read" read_pages before
check "restart: all tokens are found" found before 1920
check "restart: the bytes are not nothing" test -s "$dir/before"

mark
check "restart: systemctl restart" restart
expect_same "restart: systemctl restart"
kill_daemon KILL
expect_same "restart: SIGKILL"
check "restart: status says that the pool is kept" in_machine kvcobra status
check_text "restart: status" "kept"
expect "restart: no part of the pool was lost" 1 log_has pool-lost

mark
check "restart: systemctl stop" in_machine systemctl stop "$unit"
check "restart: systemctl start" in_machine systemctl start "$unit"
expect_log "restart: after stop and start the log says that the pool is lost" "event=pool-lost"
expect_log "restart: and what to do instead" "systemctl restart"
check "restart: read after stop and start" read_pages after
check "restart: nothing is found" found after 0
check "restart: the tables are still there" as_user alice pages publish "$model" 2
mark
check "restart: an empty pool" in_machine kvcobra evict --yes
check "restart: stop" in_machine systemctl stop "$unit"
check "restart: start" in_machine systemctl start "$unit"
expect "restart: an empty pool is not reported as lost" 1 log_has pool-lost
