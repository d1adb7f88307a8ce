#!/bin/sh
# Metrics over a Unix socket and over loopback: valid pages, true values, the man page; other addresses are refused.
KVCOBRA=$1 KVCOBRAD=$2 TINY_MODEL=$3 ROOT=$4 MAN=$5
# shellcheck source=tests/e2e/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v curl >/dev/null 2>&1 || finish
check=$(dirname "$0")/metrics_check.py

serve() {
    rm -f "$dir/ready"
    mkfifo "$dir/ready"
    "$KVCOBRAD" --socket "$dir/kvcobra.sock" --operator-socket "$dir/operator.sock" --pool-bytes 64M --arena-bytes 8M \
        --log-level 4 --ready-fd 3 "$@" 3>"$dir/ready" 2>"$dir/daemon.log" &
    daemon_pid=$!
    [ "$(wc -c <"$dir/ready")" -gt 0 ] && ok "the daemon is ready" || not_ok "the daemon is ready"
}

stop() {
    kill -TERM "$daemon_pid"
    got=0
    wait "$daemon_pid" || got=$?
    daemon_pid=
    [ "$got" -eq 0 ] && ok "the daemon ends cleanly" || not_ok "the daemon ends cleanly"
}

request() {
    curl --silent --show-error --max-time 60 --unix-socket "$dir/metrics.sock" "$@"
}

# readers within a second get the same page, which may be older than the change to check: asks until a page agrees
check_page() {
    what=$1
    shift
    tries=0
    until request --fail http://localhost/metrics >"$dir/page" && python3 "$check" "$dir/page" "$MAN" "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || break
    done
    expect "$what" 0 python3 "$check" "$dir/page" "$MAN" "$@"
}

serve --metrics-socket "$dir/metrics.sock"
[ "$(stat -c %a "$dir/metrics.sock")" = 600 ] && ok "the socket has mode 0600" || not_ok "the socket has mode 0600"
check_page "an empty daemon" "m['kvcobra_pages{device=\"cpu\"}'] == 0" "m['kvcobra_pool_capacity_bytes{device=\"cpu\"}'] == 64 << 20" \
    "m['kvcobra_tables{state=\"active\"}'] == 0" "m['kvcobra_request_seconds_count{message=\"hello\"}'] == 0" \
    "m['kvcobra_restarts_total'] == 0" "len(names) > 30"

model=$dir/model.gguf
"$TINY_MODEL" "$model"
"$KVCOBRA" calibrate "$model" --text "$ROOT/LICENSE" --tokens 1024 --window 256 -o "$dir/m.stats" --quiet >/dev/null
"$KVCOBRA" solve "$dir/m.stats" --bpd 3 -o "$dir/3.table" >/dev/null
"$KVCOBRA" table stage "$dir/3.table" --socket "$dir/operator.sock" >/dev/null 2>&1
"$KVCOBRA" table activate "$dir/3.table" --socket "$dir/operator.sock" >/dev/null 2>&1
expect "an error to count" 1 "$KVCOBRA" quota unknown --max 1G --yes --socket "$dir/operator.sock"
head -c 1500 "$ROOT/README.md" >"$dir/prompt.txt"
for run in first second; do
    expect "$run reader" 0 "$KVCOBRA" generate "$model" --prompt-file "$dir/prompt.txt" --socket "$dir/kvcobra.sock" \
        --tokens 8 --ignore-eos --json
done
# 1500 tokens, of which at least the newest 64 are private: 22 chunks; the second reader leases the pages of the first
check_page "pages, tenants, tables" "m['kvcobra_pages{device=\"cpu\"}'] == 22" \
    "sum(v for k, v in m.items() if k.startswith('kvcobra_tenant_pages{')) == 22" \
    "sum(v for k, v in m.items() if k.startswith('kvcobra_table_pages{')) == 22" \
    "sum(v for k, v in m.items() if k.startswith('kvcobra_table_tokens{')) == 22 * 64" \
    "sum(v for k, v in m.items() if k.startswith('kvcobra_table_leased_pages_total{')) == 22" \
    "m['kvcobra_tables{state=\"active\"}'] == 1" "m['kvcobra_request_seconds_count{message=\"lease\"}'] >= 1" \
    "m['kvcobra_request_seconds_count{message=\"stage_table\"}'] == 1" \
    "sum(v for k, v in m.items() if k.startswith('kvcobra_tenant_sequence_misses_total{')) >= 1" \
    "all(k in m for k in ('kvcobra_work_done_total', 'kvcobra_work_threads'))" \
    "m['kvcobra_leases'] == 0 and m['kvcobra_pool_held_bytes{device=\"cpu\"}'] == 0" \
    "m['kvcobra_errors_total{errno=\"ENOENT\"}'] == 1" \
    "any(v > 0 for k, v in m.items() if k.startswith('kvcobra_table_free_tokens{'))" \
    "total('kvcobra_pool_page_bytes') == total('kvcobra_tenant_used_bytes') > total('kvcobra_table_page_bytes') > 22 * 64" \
    "total('kvcobra_pool_allocated_bytes') == total('kvcobra_pool_page_bytes') + total('kvcobra_pool_waste_bytes')" \
    "total('kvcobra_tenant_quota_bytes') == 64 << 20 and total('kvcobra_tenant_guarantee_bytes') == 0" \
    "total('kvcobra_tenant_hits_total') == 22 and total('kvcobra_tenant_misses_total') == 23 + 1" \
    "total('kvcobra_tenant_sequence_misses_total') == 2" "total('kvcobra_tenant_evictions_total') == 0" \
    "m['kvcobra_device_hit_ratio{device=\"cpu\",window=\"hour\"}'] == total('kvcobra_tenant_hit_ratio') / 2 == 0.5" \
    "0.4 < m['kvcobra_device_hit_ceiling_ratio{device=\"cpu\",window=\"day\"}'] < 0.6 and total('kvcobra_tenant_hit_ceiling_ratio') > 0.8" \
    "m['kvcobra_device_estimated_hit_ratio{capacity=\"0.5x\",device=\"cpu\"}'] == 0.5" \
    "sum(1 for k in m if k.startswith('kvcobra_tenant_estimated_hit_ratio{')) == 9"

# programs read these keys, so the table of values must not rename a key
keys() {
    expect_true "keys of $1" "' '.join(sorted($2)) == '$3'"
}
expect "status as JSON" 0 "$KVCOBRA" status --socket "$dir/operator.sock" --json
keys "status" "j" "cluster_tier devices disk_tier draining evictions extent_bytes guaranteed_bytes held_pages leases lost_names memory mover\
 page_bytes pid pool_bytes refused_packets restart sessions spaces tenants uptime_ms version waste_bytes work"
keys "a device" "j['devices'][0]" "advice extent_bytes guaranteed_bytes held_bytes message name page_bytes pages pool_bytes product\
 quarantined_slots retired_extents sessions spare_extents state uuid waste_bytes"
keys "a tenant" "j['tenants'][0]" "advice arena_bytes asked_back_bytes evictions extent_bytes first_misses guarantee_bytes held_bytes\
 hits isolated leases misses name pages pinned_bytes quota_bytes sessions used_bytes"
keys "advice" "j['tenants'][0]['advice']" "bits_per_number capacity_bytes day_distinct day_found day_lookups hits_bits_16 hits_bits_2\
 hits_bits_3 hits_bits_4_5 hits_pool_2x hits_pool_4x hits_pool_8x hits_pool_half hits_pool_same hour_distinct hour_found hour_lookups lookups"
expect_true "values of advice" "j['tenants'][0]['advice']['hour_found'] == 22 == j['devices'][0]['advice']['hits_pool_same']"
keys "a table" "j['spaces'][0]" "evictions first_kv_head held_pages leased n_kv_heads page_bytes pages table tokens tokens_free"
keys "misses" "j['tenants'][0]['first_misses']" "evicted other_table retired_table slow_tier unknown"
keys "memory" "j['memory']" "indexes journal process slot_records"
keys "work" "j['work']" "done expired refused threads waiting"
keys "the mover" "j['mover']" "pid restarts"
expect_true "values of status" "j['pool_bytes'] == 64 << 20 and j['tenants'][0]['pages'] == 22 and j['tenants'][0]['isolated'] in (True, False)"

expect "status as text" 0 "$KVCOBRA" status --socket "$dir/operator.sock"
[ "$(grep -c '^hits' "$dir/out")" -eq 3 ] && ok "status has advice" || not_ok "status has advice"
sed -n '/^hits/,$p' "$dir/out" | grep -q '^.\{81\}' && not_ok "advice fits 80 columns" || ok "advice fits 80 columns"
grep -q '^all  .* 50 %' "$dir/out" && ok "half was found" || not_ok "half was found"

status_of() {
    request --output "$dir/body" --write-out '%{http_code}' "$@"
}
[ "$(status_of http://localhost/)" = 404 ] && ok "/ is not found" || not_ok "/ is not found"
[ "$(status_of http://localhost/metrics/../x)" = 404 ] && ok "other paths are not found" || not_ok "other paths are not found"
[ "$(status_of --request DELETE http://localhost/metrics)" = 405 ] && ok "DELETE is not allowed" || not_ok "DELETE is not allowed"
[ "$(status_of --data-binary @"$model" http://localhost/metrics)" = 405 ] && ok "POST is not allowed" || not_ok "POST is not allowed"
[ "$(status_of --head http://localhost/metrics)" = 200 ] && ok "HEAD" || not_ok "HEAD"
[ "$(status_of --request GET --data x=y http://localhost/metrics)" = 400 ] && ok "GET with a body" || not_ok "GET with a body"
for target in http://kvcobra.example/metrics HTTPS://kvcobra.example:9110/metrics; do
    [ "$(status_of --request-target "$target" http://localhost/)" = 200 ] && ok "target $target" || not_ok "target $target"
    [ "$(status_of --head --request-target "$target" http://localhost/)" = 200 ] && ok "HEAD of it" || not_ok "HEAD of it"
done
[ "$(status_of --request-target http://kvcobra.example http://localhost/)" = 404 ] && ok "target without path" || not_ok "target without path"

# of one second all readers get the same page, whatever changes meanwhile
expect "pages of a while" 0 python3 - "$dir/metrics.sock" "$KVCOBRA" "$dir/operator.sock" <<'PY'
import socket, subprocess, sys, time
def page():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(sys.argv[1])
    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    text = b""
    while piece := s.recv(1 << 20):
        text += piece
    return text.split(b"\r\n\r\n", 1)[1]
began = time.monotonic()
pages = set()
for _ in range(30):
    subprocess.run([sys.argv[2], "ping", "--socket", sys.argv[3]], check=True, stdout=subprocess.DEVNULL) # counted in the page
    pages.add(page())
most = time.monotonic() - began + 2
assert len(pages) <= most, (len(pages), most)
PY

# one request per connection, and a body that does not end is not read for long
expect "requests in one packet" 0 python3 - "$dir/metrics.sock" <<'PY'
import socket, sys
def ask(data):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(sys.argv[1])
    reply = b""
    try:
        for piece in data:
            s.sendall(piece)
        while piece := s.recv(1 << 20):
            reply += piece
    except OSError: # the daemon closed the connection
        pass
    return reply
reply = ask([b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 300])
assert reply.count(b"HTTP/1.1 200") == 1 and b"\r\nConnection: close\r\n" in reply, reply[:400]
long = b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n"
assert ask([long]).startswith(b"HTTP/1.1 400 ")
endless = b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
assert ask([endless] + [b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 1024) == b""
PY
request --fail http://localhost/metrics >"$dir/one" &
one=$!
request --fail http://localhost/metrics >"$dir/two" &
wait $! "$one"
[ -s "$dir/one" ] && [ -s "$dir/two" ] && ok "two at a time" || not_ok "two at a time"

# more silent connections than are served at one time: the daemon closes them and continues
expect "silent connections" 0 python3 - "$dir/metrics.sock" <<'PY'
import socket, sys
held = []
for _ in range(40):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(sys.argv[1])
    held.append(s)
assert held[0].recv(1) == b"", "the daemon closes a silent connection"
PY
check_page "a page after that" "m['kvcobra_pages{device=\"cpu\"}'] == 22"
expect "the client socket still works" 0 "$KVCOBRA" status --socket "$dir/operator.sock"

"$KVCOBRA" quota uid-"$(id -u)" --max 32M --guarantee 8M --yes --socket "$dir/operator.sock" >/dev/null 2>&1
check_page "other shares" "total('kvcobra_tenant_quota_bytes') == 32 << 20" "total('kvcobra_tenant_guarantee_bytes') == 8 << 20"
"$KVCOBRA" evict --yes --socket "$dir/operator.sock" >/dev/null 2>&1
check_page "no pages" "total('kvcobra_pages') == total('kvcobra_pool_page_bytes') == total('kvcobra_tenant_used_bytes') == 0" \
    "total('kvcobra_tenant_pages') == total('kvcobra_table_pages') == total('kvcobra_table_page_bytes') == 0" \
    "total('kvcobra_tenant_evictions_total') == total('kvcobra_table_evictions_total') == 22" \
    "total('kvcobra_table_leased_pages_total') == 22 and total('kvcobra_table_tokens') == 0" \
    "total('kvcobra_damaged_pages_total') == total('kvcobra_refused_packets_total') == total('kvcobra_work_refused_total') == 0"
expect "a reader of evicted pages" 0 "$KVCOBRA" generate "$model" --prompt-file "$dir/prompt.txt" --socket "$dir/kvcobra.sock" \
    --tokens 8 --ignore-eos --json
check_page "a miss of evicted pages" "sum(v for k, v in m.items() if 'sequence_misses' in k and 'reason=\"evicted\"' in k) == 1"
stop
[ ! -e "$dir/metrics.sock" ] && ok "the daemon removes its socket" || not_ok "the daemon removes its socket"

# loopback, on a port that is free now
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve --metrics-address "127.0.0.1:$port"
expect "over loopback" 0 curl --silent --show-error --max-time 60 --fail "http://127.0.0.1:$port/metrics"
cat >"$dir/hold.py" <<'PY'
import socket, sys, urllib.request
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) for _ in range(16)]
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=60) as reply:
    sys.stdout.buffer.write(reply.read())
assert held[0].recv(1) == b"", "the oldest connection is ended"
held[-1].settimeout(0)
try:
    assert held[-1].recv(1) != b"", "the page came because all idle connections had timed out"
except BlockingIOError:
    pass
PY
expect "beside 16 idle connections" 0 python3 "$dir/hold.py" "$port"
cp "$dir/out" "$dir/page"
expect "the same page" 0 python3 "$check" "$dir/page" "$MAN" "m['kvcobra_pages{device=\"cpu\"}'] == 0"
stop

# a GPU that cannot be opened, a disk tier, and a cluster tier that no process serves: they have samples, status and top have
# the reason, and the man page has all families
uuid=GPU-00000000-0000-0000-0000-000000000001
mkdir -m 700 "$dir/disk"
printf 'index %064d\nseal 1 %064d\n' 1 2 >"$dir/keys"
chmod 600 "$dir/keys"
serve --metrics-socket "$dir/metrics.sock" --gpu "$uuid" --mover "$dir/nothing" --gpu-pool-bytes 256M --disk-dir "$dir/disk" \
    --disk-bytes 64M --state-dir "$dir/state" --key-file "$dir/keys" --cluster-socket "$dir/cluster.sock" --cluster-tenants uid-1,uid-2
state="kvcobra_gpu_state{device=\"gpu0\",state="
check_page "a GPU" "m['$state\"unavailable\",uuid=\"$uuid\"}'] == 1" "m['$state\"ready\",uuid=\"$uuid\"}'] == 0" \
    "m['kvcobra_pool_capacity_bytes{device=\"gpu0\"}'] == 256 << 20" "m['kvcobra_pool_capacity_bytes{device=\"cpu\"}'] == 64 << 20" \
    "m['kvcobra_gpu_quarantined_slots{device=\"gpu0\"}'] == 0" "m['kvcobra_mover_running'] == 0" "set(names) == set(manual)"
expect "status of a GPU" 0 "$KVCOBRA" status --socket "$dir/operator.sock"
grep -qE '^gpu0 +unavailable ' "$dir/out" && ok "its state" || not_ok "its state"
grep -qF "gpu0: cannot start $dir/nothing" "$dir/out" && ok "the reason" || not_ok "the reason"
expect "top" 0 "$KVCOBRA" top --socket "$dir/operator.sock"
grep -qF "gpu0  cannot start $dir/nothing" "$dir/out" && ok "the reason in top" || not_ok "the reason in top"
stop

refused() {
    what=$1
    word=$2
    shift 2
    printf '%s\n' "$@" >"$dir/conf"
    expect "$what" 1 "$KVCOBRAD" --check-config "$dir/conf"
    grep -qF -- "$word" "$dir/err" && ok "$what: the sentence" || not_ok "$what: the sentence"
}
refused "all addresses" "other machines" "metrics-address = 0.0.0.0:9110"
refused "an address of the network" "192.0.2.1:9110" "metrics-address = 192.0.2.1:9110"
refused "a port alone" "127.0.0.1:9110" "metrics-address = 9110"
refused "an address and a socket" "--metrics-socket" "metrics-address = 127.0.0.1:9110" "metrics-socket = /run/kvcobra/metrics.sock"
refused "the client socket" "another socket" "metrics-socket = /run/kvcobra/kvcobra.sock"
printf 'metrics-socket = /run/kvcobra/metrics.sock\nmetrics-socket-mode = 0660\n' >"$dir/conf"
expect "a good configuration" 0 "$KVCOBRAD" --check-config "$dir/conf"
finish
