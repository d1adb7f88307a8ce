"""Redis servers on loopback, alone or as a cluster, and the few commands that the test needs."""
import os
import random
import socket
import subprocess
import time

LIMIT_S = 60  # only ends a test whose event never happens


started = []  # processes of this test


def end_all():
    """Also after a failure no process stays."""
    for process in started:
        if process.poll() is None:
            process.kill()  # stopped ones, too
            process.wait()


def wait_until(what, condition):
    """The first true value of condition(); fails when it never comes."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            value = condition()
        except OSError:
            value = None
        if value:
            return value
        time.sleep(0.01)  # between two questions
    raise AssertionError(f"waited {LIMIT_S} s in vain: {what}")


def free_port():
    """A port that is free, and whose cluster bus port is free, too."""
    while True:
        port = random.randrange(20000, 32000)
        try:
            for number in (port, port + 10000):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", number))
            return port
        except OSError:
            pass


class ServerError(Exception):
    """A reply that begins with "-"."""


class Server:
    """One redis-server process."""

    def __init__(self, program, folder, is_cluster, *options, environment=None):
        self.port = free_port()
        self.folder = os.path.join(folder, str(self.port))
        os.mkdir(self.folder)
        cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"] if is_cluster else []
        self.command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "", "--appendonly", "no",
                        "--daemonize", "no", "--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes", *cluster, *options]
        self.environment = {**os.environ, **(environment or {})}
        self.start()

    def start(self):
        """Also again after stop(): it has no values then, but knows its cluster."""
        with open(os.path.join(self.folder, "log"), "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        started.append(self.process)
        self.connection = None

    def connect(self):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
            self.file = self.connection.makefile("rb")

    def read(self):
        line = self.file.readline()
        if not line:
            raise OSError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ServerError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest.decode()

    def ask(self, *words):
        self.connect()
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        return self.read()

    def wait(self, *login):
        wait_until(f"server {self.port} answers", lambda: self.answers(*(login or ("PING",))))

    def answers(self, *words):
        try:
            return self.ask(*words)
        except ServerError as e:
            if str(e).startswith("LOADING"):  # it reads what a replica got
                return None
            raise

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.forget_connection()

    def forget_connection(self):
        if self.connection:
            self.file.close()
            self.connection.close()
        self.connection = None

    def id(self):
        return self.ask("CLUSTER", "MYID").decode()


def crc16(data):
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xffff
    return crc


def slot_of(key):
    return crc16(key) % 16384


class Cluster:
    """Three masters, and a replica of each."""

    def __init__(self, program, folder, *options, environments=(None,) * 6):
        self.servers = [Server(program, folder, True, *options, environment=e) for e in environments]
        self.masters, self.replicas = self.servers[:3], self.servers[3:]
        self.form()

    def form_again(self):
        """New servers at the same ports: empty, and without what they knew of each other."""
        for server in self.servers:
            server.stop()
            for name in os.listdir(server.folder):  # also values that a replica got
                if name != "log":
                    os.unlink(os.path.join(server.folder, name))
        for server in self.servers:
            server.start()
        self.form()

    def form(self):
        for server in self.servers:
            server.wait()
        bounds = [0, 5461, 10923, 16384]
        for i, server in enumerate(self.masters):
            server.ask("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for server in self.servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        wait_until("all know each other", lambda: all(
            "cluster_known_nodes:6" in s.ask("CLUSTER", "INFO").decode() for s in self.servers))
        for master, replica in zip(self.masters, self.replicas):
            wait_until("replica", lambda m=master, r=replica: self.replicate(r, m))
        wait_until("the cluster works", self.is_whole)

    @staticmethod
    def replicate(replica, master):
        try:
            return replica.ask("CLUSTER", "REPLICATE", master.id()) == "OK"
        except ServerError:
            return False

    def is_whole(self):
        return all("cluster_state:ok" in s.ask("CLUSTER", "INFO").decode() for s in self.servers) and \
            all(b"master_link_status:up" in r.ask("INFO", "replication") for r in self.replicas)

    def owner(self, key):
        """The server that serves the slot of @key now."""
        for server in self.servers:
            if server.process.poll() is not None:
                continue
            for first, last, master, *_ in server.ask("CLUSTER", "SLOTS"):
                if first <= slot_of(key) <= last:
                    return next(s for s in self.servers if s.port == master[1])
        raise AssertionError(f"no server has the slot of {key}")

    def stop(self):
        for server in self.servers:
            server.stop()
