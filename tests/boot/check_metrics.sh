# Metrics where kvcobrad-metrics(7) says, and refusals of addresses that no client could reach.

# http ARGUMENT...: the page, read in the network of the container
http() {
    as_user bob curl --silent --show-error --fail --max-time 30 "$@"
}

check "metrics: prompts are published" as_user alice pages publish "$model" 2
check "metrics: the Unix socket" in_machine curl --silent --fail --unix-socket /run/kvcobra/metrics.sock http://localhost/metrics
check_text "metrics: the page" "kvcobra_"
expect "metrics: another user cannot read the socket" 7 http --unix-socket /run/kvcobra/metrics.sock http://localhost/metrics

# the documented way to an address
mkdir -p "$(at $unit_folder/kvcobrad-metrics.socket.d)"
cp "$(at /usr/local/share/doc/kvcobra/kvcobrad-metrics-address.conf)" "$(at $unit_folder/kvcobrad-metrics.socket.d/address.conf)"
in_machine systemctl daemon-reload
in_machine systemctl stop kvcobrad-metrics.socket
check "metrics: restart with the drop-in" restart
check "metrics: the address" http http://127.0.0.1:9110/metrics
check_text "metrics: the page at the address" "kvcobra_"
check "metrics: that restart kept the pool" read_pages after
check "metrics: all tokens are found" found after 1920

# refused NAME SENTENCE: a start fails for good, with the sentence
refused() {
    mark
    expect "$1" 1 restart
    expect_log "$1: the sentence" "$2"
    check "$1: it is not started again" soon has_failed 78
}

configured=$(cat "$(at "$conf")")
configure "$configured" "metrics-address = 127.0.0.1:9110"
refused "metrics: an address beside the socket of systemd" "systemd passed a metrics socket, so metrics-address cannot apply"
in_machine systemctl stop kvcobrad-metrics.socket
in_machine systemctl --quiet mask --runtime kvcobrad-metrics.socket
refused "metrics: an address without a network" "kvcobrad may not create network sockets"
drop_in network "RestrictAddressFamilies=AF_INET"
refused "metrics: an address in a private network" "kvcobrad has a network of its own"
drop_in network "RestrictAddressFamilies=AF_INET" "PrivateNetwork=no" "IPAddressAllow=localhost"
check "metrics: an address with the relaxations" restart
check "metrics: it is reached" http http://127.0.0.1:9110/metrics

rm -r "$(at $unit_folder/$unit.d/network.conf)" "$(at $unit_folder/kvcobrad-metrics.socket.d)"
in_machine systemctl --quiet unmask --runtime kvcobrad-metrics.socket
in_machine systemctl daemon-reload
configure "$configured"
check "metrics: as it was" restart
check "metrics: the Unix socket again" in_machine curl --silent --fail --unix-socket /run/kvcobra/metrics.sock http://localhost/metrics
