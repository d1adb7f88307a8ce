"""Chaos in the servers of a cluster, while test_chaos.c causes it in the hosts that use them and compares what they find.

Usage: chaos.py TEST_CHAOS STEPPED_CLOCK.so

Three masters with a replica each are killed, stopped, emptied and resharded, their values are changed, and their clocks are stepped.
KVC_CHAOS_S is how long that lasts (default 60 s): an hour before a release. KVC_TEST_SEED repeats the order of events.
"""
import collections
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from servers import Cluster, ServerError, end_all, slot_of, started, wait_until

PAUSE_S, STOPPED_S, DEAD_S, REPORT_S = 0.8, 0.5, 1.5, 60
STEPS_S = (-172800, -3600, 3600, 172800)
SLOTS = 8  # of a reshard, each with keys


class Clock:
    """The time of day of one server."""

    def __init__(self, path):
        self.path, self.offset_s = path, 0
        self.set(0)

    def set(self, offset_s):
        self.offset_s = offset_s
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as f:  # it is mapped: the file stays
            f.write(struct.pack("<q", offset_s))


class Chaos:
    def __init__(self, cluster, clocks, numbers):
        self.cluster, self.clocks, self.numbers = cluster, clocks, numbers
        self.counts = collections.Counter()

    def alive(self):
        return [s for s in self.cluster.servers if s.process.poll() is None]

    def masters(self):
        return [s for s in self.alive() if "role:master" in s.ask("INFO", "replication").decode()]

    # ---- events ----

    def kill(self):
        server = self.numbers.choice(self.cluster.servers)
        server.stop()
        time.sleep(DEAD_S)  # time is the subject here: a replica may take over
        server.start()

    def stop(self):
        server = self.numbers.choice(self.cluster.servers)
        server.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        server.signal(signal.SIGCONT)

    def empty(self):
        for server in self.masters():
            server.ask("FLUSHALL")

    def damage(self):
        for server in self.masters():
            for key in server.ask("KEYS", "kvcobra:????????*"):  # not the fleet's
                server.ask("SETRANGE", key, 300, "damage")

    def reshard(self):
        """Slots that have pages move to another master, key by key."""
        source, target = self.numbers.sample(self.masters(), 2)
        keys = source.ask("KEYS", "kvcobra:*")
        for slot in {slot_of(k) for k in self.numbers.sample(keys, min(SLOTS, len(keys)))}:
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id())
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id())
            for key in source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            for server in (target, source):
                server.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id())
            self.counts["moved slots"] += 1

    def step(self):
        clock = self.numbers.choice(self.clocks)
        clock.set(clock.offset_s + self.numbers.choice(STEPS_S))

    # ---- order ----

    def happen(self):
        event = self.numbers.choice((self.kill, self.kill, self.stop, self.stop, self.reshard, self.reshard, self.empty, self.damage,
                                     self.step))
        try:
            event()
            self.counts[event.__name__] += 1
        except (OSError, ServerError, ValueError):  # a server that is dead, a replica now, or without keys: that is chaos, too
            self.counts["failed events"] += 1
            for server in self.cluster.servers:
                server.forget_connection()

    def report(self):
        print("servers:", ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items())), flush=True)

    def heal(self):
        """All servers begin anew with the right time. What an hour left of the cluster may not come together again."""
        for clock in self.clocks:
            clock.set(0)
        self.cluster.form_again()


def run(program, test, clock_library, folder):
    paths = [os.path.join(folder, f"clock{i}") for i in range(6)]
    clocks = [Clock(path) for path in paths]
    cluster = Cluster(program, folder, "--cluster-require-full-coverage", "no",
                      environments=[{"LD_PRELOAD": clock_library, "KVC_TEST_CLOCK": path} for path in paths])
    seed = os.environ.get("KVC_TEST_SEED") or hex(random.getrandbits(64))
    print(f"servers: KVC_TEST_SEED={seed}", flush=True)
    chaos = Chaos(cluster, clocks, random.Random(seed))
    hosts = subprocess.Popen([test], stdin=subprocess.PIPE, env={
        **os.environ, "KVC_CHAOS_SERVERS": ", ".join(f"127.0.0.1:{s.port}" for s in cluster.servers),
        "KVC_CHAOS_CLOCK": clock_library, "KVC_CHAOS_READY": os.path.join(folder, "ready")})
    started.append(hosts)
    while hosts.poll() is None and not os.path.exists(os.path.join(folder, "ready")):
        time.sleep(0.05)  # clients encode their texts, which takes long in a sanitized build
    reported = time.monotonic()
    end = reported + float(os.environ.get("KVC_CHAOS_S", "60"))
    while time.monotonic() < end and hosts.poll() is None:
        chaos.happen()
        time.sleep(PAUSE_S)
        if time.monotonic() - reported >= REPORT_S:
            chaos.report()
            reported = time.monotonic()
    chaos.report()
    try:
        chaos.heal()
    except (AssertionError, OSError, ServerError) as e:
        print(f"servers: they did not form a cluster again ({e}): whether the hosts share pages again cannot be compared", flush=True)
        raise
    finally:  # the hosts end their chaos, say what they counted, and look whether they share pages again
        hosts.stdin.close()
        status = hosts.wait()
    return status


def main(test, clock_library):
    program = shutil.which("redis-server")
    if not program:
        print("skipped: there is no redis-server (Debian package redis-server)")
        return 77
    folder = tempfile.mkdtemp(prefix="kvc-chaos-")
    try:
        return run(program, test, clock_library, folder)
    finally:
        end_all()
        if not os.environ.get("KVC_TEST_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
