# A daemon that hangs is ended and started again by systemd, and its pages stay.

drop_in watchdog "WatchdogSec=5"
check "watchdog: restart with 5 seconds" restart
check "watchdog: prompts are published" as_user alice pages publish "$model" 2
check "watchdog: read" read_pages before
mark
kill_daemon STOP
expect_same "watchdog: after the stopped process was replaced"
check "watchdog: that was the watchdog" soon in_machine sh -c 'journalctl --quiet --output cat _PID=1 | grep -q "Watchdog timeout"'
rm "$(at $unit_folder/$unit.d/watchdog.conf)"
in_machine systemctl daemon-reload
