# The steps of systemd/README.md on a running system, and a small model with an active table.

meson install -C "$BUILD" --no-rebuild --destdir "$(at /)" >"$dir/out" 2>&1 || die_with_log "meson install failed" "$dir/out"
in_machine ldconfig
cp "$BUILD/tests/boot/boot_pages" "$(at /usr/local/bin/pages)"
cp "$BUILD/tests/e2e/cli/tiny_model" "$(at /usr/local/bin/tiny_model)"
cp "$ROOT/LICENSE" "$(at $machine_home/text)"

check "install: systemd-sysusers" in_machine systemd-sysusers
check "install: the user and the group exist" in_machine getent passwd kvcobra
check "install: systemd-tmpfiles" in_machine systemd-tmpfiles --create
check "install: the configuration is in place" test -f "$(at "$conf")"
echo "# mine" >>"$(at "$conf")"
check "install: systemd-tmpfiles again" in_machine systemd-tmpfiles --create
check "install: the configuration of the administrator stays" grep -q "# mine" "$(at "$conf")"
check "install: systemctl enable --now" in_machine systemctl enable --now kvcobrad.socket kvcobrad-operator.socket \
    kvcobrad-metrics.socket kvcobrad.service
check "install: the service runs" unit_is_up
check "install: the timer that recalibrates is installed, and off" in_machine sh -c \
    'test "$(systemctl is-enabled kvcobrad-recalibrate.timer)" = disabled'
check "install: the options of recalibrate are in place" test -f "$(at /etc/kvcobra/recalibrate.conf)"
check "install: nothing of systemd's own reading is wrong" in_machine sh -c \
    '! journalctl --quiet --output cat _PID=1 | grep -F kvcobra | grep -E "nknown|ailed|ignoring"'

# small extents, so that prompts need several
configure "pool-bytes = 16M" "extent-bytes = 256K" "span-bytes = 64K" "arena-bytes = 4M" "quota-bytes = 64M"
check "install: restart with another configuration" restart

in_machine tiny_model $machine_home/model.gguf
check "install: calibrate" in_machine kvcobra calibrate $machine_home/model.gguf --text $machine_home/text --tokens 1024 --window 256 \
    -o $machine_home/model.stats --quiet
check "install: solve" in_machine kvcobra solve $machine_home/model.stats --bpd 3 -o $machine_home/3.table
check "install: stage a table" in_machine kvcobra table stage $machine_home/3.table
check "install: activate it" in_machine kvcobra table activate $machine_home/3.table
check "install: the model is listed" in_machine kvcobra model list --json
model=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["digest"])' "$dir/out")
