#!/usr/bin/env python3
"""kvcobra-cluster with real servers: three masters and three replicas on loopback, killed, stopped, resharded and full.

    test_cluster.py KVCOBRA_CLUSTER [NAME...]

Whatever a server does costs misses only: every request is answered, at its deadline at the latest, and memory stays bounded.
Exit 77: there is no redis-server.
"""
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from checks import check, equal, key, name, value
from daemon_side import (DEGRADED, EXISTS, GET, PUT, READY, REFUSED, STATUS, TOUCH, VERSION, Daemon, Gone, JoiningDaemon)
from fake_servers import PORT, Liar, Store
from servers import Cluster, Server, end_all, slot_of, wait_until

PROGRAM = sys.argv[1]
MISSES = {"EAGAIN", "EHOSTDOWN", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH"}


# ---- one cluster for all of these -----------------------------------------------------------------------------------


def test_pages(cluster, d):
    """Written, found, read, removed; the first value stays."""
    names = [name(i) for i in range(60)]
    equal({slot_of(key(n)) * 3 // 16384 for n in names}, {0, 1, 2})
    equal(d.exists(names).bits, [0] * 60)
    equal(d.get(names[0]), "ENOENT")
    for i, n in enumerate(names[:40]):
        equal(d.put(n, value(i)).result, 0)
    reply = d.exists(names)
    equal((reply.result, reply.bits), (0, [1] * 40 + [0] * 20))
    for i, n in enumerate(names[:40]):
        equal(d.get(n), value(i))
    equal(d.put(names[0], value(1)).result, "EEXIST")
    equal(d.get(names[0]), value(0))
    equal(d.remove(names[:2] + names[50:51]).bits, [1, 1, 0])
    equal(d.get(names[1]), "ENOENT")
    equal(d.put(names[0], value(1)).result, 0)
    equal(d.get(names[0]), value(1))
    counters = d.status().counters
    equal((counters["found"], counters["missed"], counters["written"]), (40, 80, 41))
    # each node was new once
    check(counters["losses"] >= counters["nodes_ready"] > 0, counters)
    equal(counters["written_bytes"], sum(len(value(i)) for i in range(40)) + len(value(1)))


def test_pipeline(cluster, d):
    """All names of a long prompt in one request, and many requests at a time, answered in any order."""
    names = [name(1000 + i) for i in range(1024)]
    equal(d.exists(names).bits, [0] * 1024)
    sent = [d.send(EXISTS, names[i:i + 8], 5000) for i in range(120)]
    replies = [d.receive() for _ in sent]
    equal(sorted(r.id for r in replies), sent)
    equal({r.result for r in replies}, {0})


def test_time_to_live(cluster, d):
    n, missing = name(1), name(999999)
    equal(d.replace(n, b"x", ttl_ms=100000).result, 0)
    check(0 < cluster.owner(key(n)).ask("PTTL", key(n)) <= 100000)
    equal(d.ask(TOUCH, [n, missing], 5000, ttl_ms=900000).bits, [1, 0])
    check(100000 < cluster.owner(key(n)).ask("PTTL", key(n)) <= 900000)


def test_damaged_values(cluster, d):
    """What stands in the cluster is handed on as it is, up to the size asked for: kvcobrad's seal decides."""
    n = name(2)
    equal(d.replace(n, value(2)).result, 0)
    server = cluster.owner(key(n))
    server.ask("SETRANGE", key(n), 100, b"damage")
    equal(d.get(n), value(2)[:100] + b"damage" + value(2)[106:])
    server.ask("SET", key(n), value(2)[:77])
    equal(d.get(n), value(2)[:77])
    equal(d.get(n, room=77), value(2)[:77])
    equal(d.get(n, room=76), "EFBIG")
    server.ask("SET", key(n), b"")
    equal(d.get(n), "ENOENT")
    server.ask("DEL", key(n))
    server.ask("RPUSH", key(n), b"a list")
    equal(d.get(n), "EBADMSG")
    equal(d.put(n, value(2)).result, "EEXIST")
    equal(d.replace(n, value(2)).result, 0)


def test_huge_value(cluster, d):
    """A value far above every limit costs one miss: not the connection, and not its bytes in memory."""
    n = name(3)
    before = d.status().counters["node_failures"]
    cluster.owner(key(n)).ask("SET", key(n), bytes(100 << 20))
    for _ in range(5):
        equal(d.get(n), "EFBIG")
    equal(d.exists([n]).bits, [1])
    equal(d.status().counters["node_failures"], before)
    cluster.owner(key(n)).ask("DEL", key(n))
    check(d.memory_kb() < 80 << 10, "uses", d.memory_kb(), "KiB")


def test_limits(cluster, d):
    """Ranges outside of the memory object, and more requests than agreed."""
    equal(d.get(name(1), room=17 << 20), "EINVAL")
    equal(d.ask(GET, [name(1)], 1000, 33 << 20, 1).result, "EINVAL")
    n = name(5)
    server = cluster.owner(key(n))
    patient = Daemon(PROGRAM, tempfile.mkdtemp(dir=FOLDER), f"127.0.0.1:{server.port}", **{"stall-ms": 60000})
    equal(patient.exists([n]).result, 0)
    server.signal(signal.SIGSTOP)
    for _ in range(140):
        patient.send(EXISTS, [n], 60000)
    refused = [patient.receive().result for _ in range(12)]
    server.signal(signal.SIGCONT)
    equal(set(refused), {"EBUSY"})
    results = {patient.receive().result for _ in range(128)}
    check(results <= MISSES | {0}, results)
    equal(patient.stop(), 0)
    wait_until("the node serves again", lambda: d.exists([n]).result == 0)


def test_reshard(cluster, d):
    """A slot moves to another master, key by key: ASK, then MOVED, and nothing is missed."""
    n = name(4)
    slot = slot_of(key(n))
    source = cluster.owner(key(n))
    target = next(o for o in (cluster.owner(key(name(i))) for i in range(100)) if o is not source)
    equal(d.replace(n, value(4)).result, 0)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id())
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id())
    equal(d.get(n), value(4))
    for k in source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", "127.0.0.1", target.port, k, 0, 5000)
    before = d.status().counters["redirected"]
    equal(d.get(n), value(4))
    equal(d.replace(n, value(5)).result, 0)
    check(d.status().counters["redirected"] >= before + 2)
    for server in (target, source):
        server.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id())
    equal(d.get(n), value(5))
    wait_until("the new map is known", lambda: redirections(d, n) == 0)


def redirections(d, n):
    before = d.status().counters["redirected"]
    equal(d.exists([n]).bits, [1])
    return d.status().counters["redirected"] - before


def test_slot_without_node(cluster, d):
    """One slot that no node serves: CLUSTERDOWN is a miss, for this slot only."""
    n = name(6)
    slot, server = slot_of(key(n)), cluster.owner(key(n))
    for s in cluster.servers:
        s.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    server.ask("CLUSTER", "DELSLOTS", slot)
    other = next(o for o in map(name, range(100)) if slot_of(key(o)) != slot)
    check(d.exists([n]).result in MISSES)
    equal(d.exists([other]).result, 0)
    server.ask("CLUSTER", "ADDSLOTS", slot)
    wait_until("the slot is served", lambda: d.exists([n]).result == 0)


def test_full(cluster, d):
    """maxmemory: writes are refused, and reads go on."""
    n, new = name(7), name(70000)
    equal(d.replace(n, value(7)).result, 0)
    server = cluster.owner(key(new))
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.ask("CONFIG", "SET", "maxmemory", "1")
    equal(d.put(new, value(8)).result, "ENOSPC")
    equal(d.exists([new]).bits, [0])
    equal(d.get(n), value(7))
    server.ask("CONFIG", "SET", "maxmemory", "0")
    equal(d.put(new, value(8)).result, 0)


def test_hostile_packets(cluster, d):
    """Packets that kvcobrad never sends end the connection; the next one works."""
    def reconnected(send):
        send()
        try:
            while True:
                d.receive()
        except Gone:
            d.greet()
        equal(d.exists([name(0)]).result, 0)

    reconnected(lambda: d.socket.send(b"?"))
    reconnected(lambda: d.socket.send(bytes(64)))
    reconnected(d.hello)
    for bad in ({"version": VERSION + 1}, {"version": VERSION - 1}, {"fds": []}, {"n_bytes": 1}):
        d.socket.close()
        d.accept()
        d.hello(**bad)
        equal(d.receive().result, "EINVAL")
        reconnected(lambda: None)
    d.socket.close()  # with requests on their way
    d.greet()
    d.send(EXISTS, [name(i) for i in range(100)], 1000)
    d.socket.close()
    d.greet()
    equal(d.exists([name(0)]).result, 0)


def test_other_fleet(cluster, d):
    """A second fleet in the same cluster is refused, under another prefix it is not."""
    folder = tempfile.mkdtemp(dir=FOLDER)
    servers = f"localhost:{cluster.masters[0].port}"
    other = Daemon(PROGRAM, folder + "/other", servers, fleet=bytes(16))
    status = other.status()
    equal(status.counters["state"], REFUSED)
    check("another fleet" in status.sentence, status.sentence)
    equal(other.exists([name(0)]).result, "EPERM")
    equal(other.stop(), 0)
    apart = Daemon(PROGRAM, folder + "/apart", servers, fleet=bytes(16), **{"key-prefix": "apart:"})
    equal(apart.status().counters["state"], READY)
    equal(apart.exists([name(0)]).bits, [0])
    equal(apart.stop(), 0)


def test_emptied(cluster, d):
    """Every host of the fleet learns of it, not only the one that stores the fleet's id again."""
    other = Daemon(PROGRAM, tempfile.mkdtemp(dir=FOLDER), f"localhost:{cluster.masters[0].port}")
    hosts = (d, other)
    before = [h.status().counters["losses"] for h in hosts]
    for _ in range(2):
        for master in cluster.masters:
            master.ask("FLUSHALL")
        wait_until("all hosts count a loss", lambda: all(h.status().counters["losses"] > n for h, n in zip(hosts, before)))
        after = [h.status().counters["losses"] for h in hosts]
        equal(after, [n + 1 for n in before])
        before = after
    equal(other.stop(), 0)
    for i in range(40):  # for the tests that follow
        equal(d.put(name(i), value(i)).result, 0)


def test_rate(cluster, d):
    """Writes above the rate wait, until their deadline at the longest; reads pass them."""
    slow = Daemon(PROGRAM, tempfile.mkdtemp(dir=FOLDER), f"127.0.0.1:{cluster.masters[0].port}", **{"write-bytes-per-second": "64K"})
    size = 1 << 20
    first, second = name(80000), name(80001)
    equal(slow.put(first, bytes(size)).result, 0)
    late = slow.send(PUT, [second], 100, 0, size, 60000)
    equal(slow.send(EXISTS, [first], 5000), late + 1)
    replies = [slow.receive(), slow.receive()]
    equal([r.id for r in replies], [late + 1, late])
    equal(replies[1].result, "ETIMEDOUT")
    equal(d.exists([first, second]).bits, [1, 0])
    equal(slow.stop(), 0)


def test_small_buffer(cluster, d):
    """Values above buffer-bytes: a miss, a dropped write, and no lost connection."""
    small = Daemon(PROGRAM, tempfile.mkdtemp(dir=FOLDER), f"127.0.0.1:{cluster.masters[0].port}", **{"buffer-bytes": "64K"})
    fits, large = name(81000), name(81001)
    equal(small.put(fits, bytes(60000)).result, 0)
    equal(small.get(fits), bytes(60000))
    equal(d.put(large, bytes(1 << 20)).result, 0)
    equal(small.get(large, room=2 << 20), "EFBIG")
    equal(small.replace(large, bytes(1 << 20)).result, "ENOBUFS")
    equal(small.get(fits), bytes(60000))
    equal(small.status().counters["node_failures"], 0)
    equal(small.stop(), 0)


def test_stopped_master(cluster, d):
    """A master that hangs: deadlines hold, the others answer, and it is left alone until it, or its replica, serves."""
    victim = cluster.owner(key(name(9)))
    names = [name(i) for i in range(40)]
    of_victim = [cluster.owner(key(n)) is victim for n in names]
    before = d.exists(names)
    equal(before.result, 0)
    check(sum(before.bits) >= 30, before.bits)
    victim.signal(signal.SIGSTOP)
    for _ in range(5):
        reply = d.exists(names, timeout_ms=40)
        check(reply.result in MISSES | {0}, reply.result)

    def is_left_alone():
        """The other nodes answer all the time; the deadline is far away, so that a busy machine keeps it."""
        reply = d.exists(names, timeout_ms=20000)
        check(reply.result in MISSES | {0}, reply.result)
        equal([b for b, v in zip(reply.bits, of_victim) if not v], [b for b, v in zip(before.bits, of_victim) if not v])
        return reply.result in ("EHOSTDOWN", 0)

    wait_until("the breaker opens, or the replica serves", is_left_alone)
    check(d.status().counters["node_failures"] > 0)
    wait_until("the replica, or the master, serves", lambda: d.exists(names).result == 0)
    victim.signal(signal.SIGCONT)
    wait_until("the cluster is whole", cluster.is_whole_again)
    wait_until("all answer", lambda: d.exists(names).result == 0)


def test_killed_master(cluster, d):
    """A master that dies: misses, then its replica serves what was replicated."""
    n = name(10)
    equal(d.replace(n, value(10)).result, 0)
    victim = cluster.owner(key(n))
    victim.ask("WAIT", 1, 10000)
    victim.signal(signal.SIGKILL)
    victim.process.wait()
    wait_until("the state says so", lambda: d.status().counters["state"] == DEGRADED)
    check(f"port {victim.port}" in d.status().sentence and "does not answer" in d.status().sentence, d.status().sentence)
    results = set()

    def found():
        reply = d.exists([n], timeout_ms=100)
        results.add(reply.result)
        return reply.bits == [1]

    wait_until("the replica serves", found)
    check(results - {0} <= MISSES, results)
    equal(d.get(n), value(10))


def test_all_killed(cluster, d):
    """Without any server every request still gets its answer, and SIGTERM ends the process."""
    for server in cluster.servers:
        server.stop()
    names = [name(i) for i in range(40)]
    for _ in range(20):
        reply = d.exists(names, timeout_ms=50)
        check(reply.result in MISSES, reply.result)
    check(d.memory_kb() < 80 << 10, "uses", d.memory_kb(), "KiB")


def run_cluster(program, wanted):
    tests = [test_pages, test_pipeline, test_time_to_live, test_damaged_values, test_huge_value, test_limits, test_reshard,
             test_slot_without_node, test_full, test_hostile_packets, test_other_fleet, test_emptied, test_rate, test_small_buffer,
             test_stopped_master, test_killed_master, test_all_killed]
    cluster = Cluster(program, FOLDER)
    try:
        d = Daemon(PROGRAM, os.path.join(FOLDER, "main"), ", ".join(f"127.0.0.1:{m.port}" for m in cluster.masters[:2]))
        cluster.is_whole_again = lambda: all("cluster_state:ok" in s.ask("CLUSTER", "INFO").decode() for s in cluster.servers)
        equal(d.status().counters["state"], READY)
        for test in tests:
            run(test, wanted, cluster, d)
        equal(d.stop(), 0)
    finally:
        cluster.stop()


# ---- servers that are no cluster ------------------------------------------------------------------------------------


def test_single_server(program):
    """One server that is no cluster works, with user and password; two of them do not."""
    password = os.path.join(FOLDER, "password")
    with open(os.open(password, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
        f.write("geheim\n")
    server = Server(program, FOLDER, False, *"--user default off --user kvc on >geheim ~kvcobra:* +@all".split())
    other = Server(program, FOLDER, False)
    server.wait("AUTH", "kvc", "geheim")
    other.wait()
    login = {"user": "kvc", "password-file": password}
    d = Daemon(PROGRAM, os.path.join(FOLDER, "single"), f"127.0.0.1:{server.port}", **login)
    equal(d.status().counters["state"], READY)
    equal(d.put(name(1), value(1)).result, 0)
    equal(d.get(name(1)), value(1))
    server.ask("ACL", "SETUSER", "kvc", "-getrange")
    equal(d.get(name(1)), "EACCES")
    equal(d.stop(), 0)

    d = JoiningDaemon(PROGRAM, os.path.join(FOLDER, "anonymous"), f"127.0.0.1:{server.port}")
    wait_until("the sentence", lambda: "NOAUTH" in d.status().sentence)
    equal(d.exists([name(1)]).result, "EAGAIN")
    equal(d.stop(), 0)
    d = Daemon(PROGRAM, os.path.join(FOLDER, "two"), f"127.0.0.1:{other.port}, localhost:{other.port}")
    equal(d.status().counters["state"], REFUSED)
    check("not a node of a cluster" in d.status().sentence, d.status().sentence)
    equal(d.stop(), 0)
    server.stop()
    other.stop()


def test_liars(_):
    """Replies that no server sends: the fleet's id never compares equal, so nothing is ever asked or written; memory stays."""
    answers = {
        "loop": b"-MOVED 1 127.0.0.1:PORT\r\n",
        "ask": b"-ASK 1 127.0.0.1:PORT\r\n",
        "many": b"*1000000000\r\n",
        "long": b"$9000000000\r\n" + bytes(1 << 20),
        "noise": os.urandom(1000),
        "twice": b":1\r\n:1\r\n:1\r\n",
        "deep": b"*1\r\n" * 5000,
        "line": b"+" + b"x" * (1 << 20),
    }
    daemons = {n: JoiningDaemon(PROGRAM, os.path.join(FOLDER, "liar-" + n), f"127.0.0.1:{Liar(a).port}", **{"buffer-bytes": "1M"})
               for n, a in answers.items()}
    for n, d in daemons.items():
        if n in ("loop", "ask"):
            wait_until(n, lambda: d.status().counters["redirected"] >= 3)
            check(d.status().counters["nodes"] <= 2)
        else:
            wait_until(n, lambda: d.status().counters["node_failures"] >= 2)
        check(d.status().counters["state"] != READY)
        equal(d.exists([name(1)]).result, "EAGAIN")
        check(d.memory_kb() < 32 << 10, n, "uses", d.memory_kb(), "KiB")
        equal(d.stop(), 0)


def test_question_beside_values(_):
    """A server that sends a value slowly answers questions meanwhile: they have a connection of their own."""
    server = Store([[0, 16383, ["", PORT]]])
    d = Daemon(PROGRAM, os.path.join(FOLDER, "beside"), f"127.0.0.1:{server.port}")
    equal(d.put(name(1), value(1)).result, 0)
    server.gives.clear()
    get = d.send(GET, [name(1)], timeout_ms=60000, n_bytes=1 << 16)
    equal(d.exists([name(1), name(2)], timeout_ms=60000).bits, [1, 0])
    server.gives.set()
    reply = d.receive()
    equal((reply.id, reply.result), (get, 0))
    equal(d.stop(), 0)


def test_unusable_ranges(_):
    """Ranges whose node cannot be used, as one that has a port for TLS alone, are misses and are said; all others are served."""
    fleet = slot_of(b"kvcobra:fleet")
    names = [name(i) for i in range(2000)]
    slots = {n: slot_of(key(n)) for n in names}
    gaps = [[0, 49, ["127.0.0.1", 0]], [50, 99, ["", 0]], [100, 199], [200, 299, ["not a host", 7000]], [399, 300, ["127.0.0.1", PORT]],
            [400, 499, ["127.0.0.1", 65536]], "text"]
    check(fleet >= 500)
    server = Store(gaps + [[500, fleet, ["", PORT]], [fleet + 1, 16383, ["127.0.0.1", PORT]], [16000, 16383, ["", PORT]]])
    d = Daemon(PROGRAM, os.path.join(FOLDER, "gaps"), f"127.0.0.1:{server.port}")
    status = d.status()
    equal(status.counters["state"], DEGRADED)
    check("500 of 16384 slots have no node" in status.sentence and "a port for TLS alone" in status.sentence, status.sentence)
    served, lost = next(n for n in names if slots[n] >= 500), next(n for n in names if slots[n] < 500)
    equal(d.put(served, value(1)).result, 0)
    equal(d.get(served), value(1))
    reply = d.exists([lost, served])
    equal((reply.result, reply.bits), ("EHOSTUNREACH", [0, 1]))
    check(d.status().counters["failed"] >= 1)

    refreshed = d.status().counters["refreshed"]
    wait_until("more maps", lambda: d.exists([lost]).result and d.status().counters["refreshed"] >= refreshed + 2)
    equal(len([e for e in d.log() if e["event"] == "slots-without-node"]), 1)

    for redirection in (b"-ASK %d 127.0.0.1:PORT\r\n", b"-MOVED %d :PORT\r\n"):
        server.once[key(served)] = redirection.replace(b"PORT", b"%d" % server.port) % slots[served]
        equal(d.exists([served]).bits, [1])
    for redirection in (b"-MOVED %d a b:1\r\n", b"-MOVED %d :0\r\n", b"-MOVED %d 127.0.0.1:0\r\n", b"-ASK %d 127.0.0.1:0\r\n"):
        server.once[key(served)] = redirection % slots[served]
        equal(d.exists([served]).result, "EAGAIN")
        equal(d.exists([served]).bits, [1])

    server.ranges = [[0, 16383, ["127.0.0.1", PORT]]]
    wait_until("the whole map", lambda: d.exists([lost]).result == 0)
    equal((d.status().counters["state"], d.status().sentence), (READY, ""))
    equal(len([e for e in d.log() if e["event"] == "slots-served"]), 1)
    equal(d.stop(), 0)


def test_reasons_of_joining(_):
    """A tier that cannot join says why, whatever the reason is."""
    fleet = slot_of(b"kvcobra:fleet")
    servers = {
        "something else than a string": Liar(b"+OK\r\n"),
        "is in a slot without a node: 1 of 16384": Store([[0, fleet - 1, ["", PORT]], [fleet + 1, 16383, ["", PORT]]]),
        "ERR unknown command": Liar(b"-ERR unknown command\r\n"),
        "CLUSTERDOWN": Liar(b"-CLUSTERDOWN The cluster is down\r\n"),
        "is not there after it was set": Liar(b"$0\r\n\r\n"),
    }
    for reason, server in servers.items():
        d = JoiningDaemon(PROGRAM, os.path.join(FOLDER, f"joining-{server.port}"), f"127.0.0.1:{server.port}")
        wait_until(reason, lambda: reason in d.status().sentence)
        equal(d.stop(), 0)


def test_unreachable_servers(_):
    """The sentence says why there is no connection: the name, or the system's reason, without waiting for an answer."""
    try:
        socket.getaddrinfo("none.invalid", 1)
        name_sentence = "cannot look up none.invalid"
    except socket.gaierror as e:
        is_unknown = e.errno == socket.EAI_NONAME
        name_sentence = "cannot look up none.invalid: " + ("there is no such name" if is_unknown else os.strerror(errno.EAGAIN))
    # connect() to the broadcast address fails at once
    for server, sentence in (("none.invalid", name_sentence), ("255.255.255.255", "cannot connect: " + os.strerror(errno.ENETUNREACH))):
        d = JoiningDaemon(PROGRAM, os.path.join(FOLDER, "to-" + server), f"{server}:6379", **{"connect-ms": 60000})
        wait_until(sentence, lambda: sentence in d.status().sentence)
        equal(d.exists([name(1)]).result, "EAGAIN")
        equal(d.stop(), 0)


def test_silent_fleet(_):
    """A server that keeps the fleet's id to itself is asked again after a while, and joined when it answers."""
    server = Store([[0, 16383, ["", PORT]]])
    server.gives.clear()
    d = JoiningDaemon(PROGRAM, os.path.join(FOLDER, "silent"), f"127.0.0.1:{server.port}", **{"stall-ms": 60000})
    wait_until("the sentence", lambda: "did not answer within 2000 ms" in d.status().sentence)
    equal(d.exists([name(1)]).result, "EAGAIN")
    server.gives.set()
    wait_until("it joins", lambda: d.status().counters["state"] == READY)
    equal((d.put(name(1), value(1)).result, d.get(name(1))), (0, value(1)))
    equal(d.status().counters["node_failures"], 0)
    equal(d.stop(), 0)


def test_unread_replies(_):
    """A kvcobrad that reads no replies loses its connection, and the next one works: replies do not pile up."""
    server = Store([[0, 16383, ["", PORT]]])
    d = Daemon(PROGRAM, os.path.join(FOLDER, "unread"), f"127.0.0.1:{server.port}")
    try:
        for _ in range(200000):
            d.send(STATUS)
        check(False, "200000 replies wait")
    except (BrokenPipeError, ConnectionResetError):
        pass
    d.greet()
    equal(d.exists([name(1)]).bits, [0])
    check("it does not read replies" in [e.get("message") for e in d.log()], d.log())
    equal(d.stop(), 0)


def test_clear_password(_):
    """A password is not sent to other hosts unless it is allowed; 192.0.2.1 exists nowhere (RFC 5737)."""
    password = os.path.join(FOLDER, "password")
    path = os.path.join(FOLDER, "clear.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"servers = 127.0.0.1:6379, 192.0.2.1:6379\npassword-file = {password}\n")
    done = subprocess.run([PROGRAM, "--check-config", path], capture_output=True, text=True, check=False)
    check(done.returncode == 1 and "in clear to 192.0.2.1" in done.stderr, done)

    server = Store([[0, 16383, ["192.0.2.1", 6379]]])  # a node that only the map names
    d = JoiningDaemon(PROGRAM, os.path.join(FOLDER, "clear"), f"127.0.0.1:{server.port}", **{"password-file": password})
    wait_until("the sentence", lambda: "in clear" in d.status().sentence)
    equal(d.stop(), 0)


# ---- the command line -----------------------------------------------------------------------------------------------


def test_command_line(_):
    def call(*arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)

    path = os.path.join(FOLDER, "x.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write("servers = 127.0.0.1:6379\nstall-ms = 1\n")
    done = call("--check-config", path)
    equal((done.returncode, done.stdout), (1, ""))
    check(f"{path}, line 2: stall-ms: \"1\" is not a number from 10" in done.stderr, done.stderr)
    equal(call("--config", path).returncode, 78)
    with open(path, "w", encoding="utf-8") as f:
        f.write("servers = 127.0.0.1:6379\n")
    done = call("--check-config", path)
    equal((done.returncode, done.stdout, done.stderr), (0, f"{path}: ok\n", ""))
    done = call("--help")
    equal(done.returncode, 0)
    for word in ("--check-config", "write-bytes-per-second", "Example: "):
        check(word in done.stdout, done.stdout)
    equal(call().returncode, 2)
    equal(call("--config", path, "more").returncode, 2)


def run(test, wanted, *arguments):
    if not wanted or test.__name__ in wanted:
        print(test.__name__, flush=True)
        test(*arguments)


def main(wanted):
    program = shutil.which("redis-server")
    for test in (test_command_line, test_liars, test_question_beside_values, test_unusable_ranges, test_reasons_of_joining,
                 test_unreachable_servers, test_silent_fleet, test_unread_replies):
        run(test, wanted, None)
    if not program:
        print("skipped: there is no redis-server (Debian package redis-server)")
        return 77
    for test in (test_single_server, test_clear_password):
        run(test, wanted, program)
    run_cluster(program, wanted)
    return 0


FOLDER = tempfile.mkdtemp(prefix="kvc-cluster-")
if __name__ == "__main__":
    try:
        STATUS_CODE = main(sys.argv[2:])
    finally:
        end_all()
        if not os.environ.get("KVC_TEST_KEEP"):
            shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(STATUS_CODE)
