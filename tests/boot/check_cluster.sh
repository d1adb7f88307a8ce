# The unit of kvcobra-cluster: its sandbox lets it read the files of TLS where its configuration names them.

cluster_unit=kvcobra-cluster.service
cluster_conf=/etc/kvcobra/cluster.conf
ca_file=/etc/kvcobra/redis-ca.crt

cluster_shows() {
    in_machine systemctl show --property "$1" --value "$cluster_unit"
}

# restart_cluster CA: restarts the unit with TLS and this file of authorities. No server listens there: a start reads the file.
restart_cluster() {
    printf '%s\n' "servers = 127.0.0.1:6379" "tls = yes" "tls-ca-file = $1" >"$(at $cluster_conf)"
    in_machine systemctl reset-failed "$cluster_unit"
    in_machine systemctl restart "$cluster_unit"
}

# cluster_refused NAME SENTENCE CA: a start fails for good, and says why
cluster_refused() {
    expect "$1" 1 restart_cluster "$3"
    in_machine journalctl --quiet --unit "$cluster_unit" --output cat --lines 20 >"$dir/out"
    check_text "$1: the sentence" "$2"
    check "$1: it is not started again" test "$(cluster_shows SubState)/$(cluster_shows ExecMainStatus)" = failed/78
}

if ! command -v openssl >/dev/null; then
    skip "cluster: there is no openssl to make a certificate with"
else
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -days 2 -keyout "$dir/ca.key" -out "$dir/ca.crt" 2>"$dir/err"
    cp "$dir/ca.crt" "$(at $ca_file)"
    chmod 0644 "$(at $ca_file)"
    check "cluster: a file of authorities in /etc" restart_cluster $ca_file
    check "cluster: the unit runs" test "$(cluster_shows ActiveState)/$(cluster_shows SubState)" = active/running
    cp "$dir/ca.crt" "$(at /usr/local/share/redis-ca.crt)"
    chmod 0644 "$(at /usr/local/share/redis-ca.crt)"
    check "cluster: and in /usr" restart_cluster /usr/local/share/redis-ca.crt
    check "cluster: its user is no other" test "$(in_machine stat -c %U "/proc/$(cluster_shows MainPID)")" = kvcobra-cluster
    chmod 0600 "$(at $ca_file)"
    cluster_refused "cluster: a file that its user may not read" $ca_file $ca_file
    cp "$dir/ca.crt" "$(at /home/redis-ca.crt)"
    cluster_refused "cluster: a file in a home folder, which the unit does not see" /home/redis-ca.crt /home/redis-ca.crt
    in_machine systemctl reset-failed "$cluster_unit"
fi
