"""The part of kvcobrad for kvcobra-cluster: its socket, its memory, its requests (proto/cluster_wire.h)."""
import array
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess

from servers import LIMIT_S, started, wait_until

HELLO, EXISTS, GET, PUT, TOUCH, STATUS, REMOVE = range(1, 8)
VERSION = 4
REQUEST = struct.Struct("<HHIQIIQQQ16s")
REPLY = struct.Struct("<HHiQQII")
COUNTERS = ("state", "nodes", "nodes_ready", "waiting", "found", "missed", "read", "read_bytes", "written", "written_bytes",
            "failed", "late", "redirected", "refreshed", "node_failures", "losses")
READY, REFUSED, DEGRADED = 1, 2, 3
MEMORY_BYTES = 32 << 20
FLEET = bytes(range(16))


class Gone(Exception):
    """kvcobra-cluster closed the connection."""


class Reply:
    """A reply. .result is 0 or the name of an errno."""

    def __init__(self, packet):
        self.kind, _, result, self.id, self.bytes, self.n_bits, self.version = REPLY.unpack_from(packet)
        self.result = errno.errorcode[-result] if result else 0
        rest = packet[REPLY.size:]
        if self.kind in (EXISTS, TOUCH, REMOVE):
            self.bits = [rest[i // 8] >> i % 8 & 1 for i in range(self.n_bits)]
        if self.kind == STATUS:
            self.counters = dict(zip(COUNTERS, struct.unpack_from(f"<{len(COUNTERS)}Q", rest)))
            self.sentence = rest[8 * len(COUNTERS):].split(b"\0")[0].decode()


class Daemon:
    """Listens as kvcobrad does, and starts a kvcobra-cluster that connects."""

    def __init__(self, program, folder, servers, fleet=FLEET, **settings):
        self.fleet = fleet
        self.path = os.path.join(folder, "cluster.sock")
        self.log_path = os.path.join(folder, "log")
        self.config_path = os.path.join(folder, "cluster.conf")
        os.makedirs(folder, exist_ok=True)
        settings = {"socket": self.path, "servers": servers, "log-format": "json", **settings}
        with open(self.config_path, "w", encoding="utf-8") as f:
            f.writelines(f"{key} = {value}\n" for key, value in settings.items())
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.settimeout(LIMIT_S)
        self.memory_fd = os.memfd_create("cluster", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memory_fd, MEMORY_BYTES)
        fcntl.fcntl(self.memory_fd, 1033, 2 | 4)  # F_ADD_SEALS: SHRINK, GROW
        self.memory = mmap.mmap(self.memory_fd, MEMORY_BYTES)
        self.next_id = 0
        self.socket = None
        self.process = subprocess.Popen([program, "--config", self.config_path], stderr=open(self.log_path, "w", encoding="utf-8"))
        started.append(self.process)
        self.greet()

    def accept(self):
        if self.socket:
            self.socket.close()
        self.socket, _ = self.listener.accept()
        self.socket.settimeout(LIMIT_S)

    def greet(self):
        self.accept()
        self.hello()
        assert self.receive().result == 0
        wait_until("kvcobra-cluster has joined", self.has_joined)

    def has_joined(self):
        """Or is refused. Nodes that the map of slots names are connected a moment later."""
        counters = self.status().counters
        return counters["state"] == REFUSED or counters["state"] in (READY, DEGRADED) and counters["nodes_ready"] == counters["nodes"]

    def hello(self, version=VERSION, n_bytes=MEMORY_BYTES, fds=None):
        fds = [self.memory_fd] if fds is None else fds
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([REQUEST.pack(HELLO, 0, 0, 0, 0, version, 0, n_bytes, 0, self.fleet)], control)

    def send(self, kind, names=(), timeout_ms=0, offset=0, n_bytes=0, ttl_ms=0):
        self.next_id += 1
        self.socket.send(REQUEST.pack(kind, 0, len(names), self.next_id, timeout_ms, 0, offset, n_bytes, ttl_ms, bytes(16)) +
                         b"".join(names))
        return self.next_id

    def receive(self):
        try:
            packet = self.socket.recv(65536)
        except ConnectionResetError as e:
            raise Gone from e
        if not packet:
            raise Gone
        return Reply(packet)

    def ask(self, *arguments, **keywords):
        number = self.send(*arguments, **keywords)
        reply = self.receive()
        assert reply.id == number
        return reply

    def status(self):
        return self.ask(STATUS)

    def exists(self, names, timeout_ms=5000):
        return self.ask(EXISTS, names, timeout_ms)

    def put(self, name, value, timeout_ms=5000, ttl_ms=600000, offset=0):
        self.memory[offset:offset + len(value)] = value
        return self.ask(PUT, [name], timeout_ms, offset, len(value), ttl_ms)

    def remove(self, names, timeout_ms=5000):
        return self.ask(REMOVE, names, timeout_ms)

    def replace(self, name, value, **keywords):
        assert self.remove([name]).result == 0
        return self.put(name, value, **keywords)

    def get(self, name, room=1 << 20, timeout_ms=5000, offset=16 << 20):
        reply = self.ask(GET, [name], timeout_ms, offset, room)
        return self.memory[offset:offset + reply.bytes] if reply.result == 0 else reply.result

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def memory_kb(self):
        """The most memory that the process ever had; 0 in a sanitized build, which keeps what was freed."""
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as f:
            if "libasan" in f.read():
                return 0
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))

    def stop(self):
        """Ends it as the service manager does. Return: its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT_S)
        self.socket.close()
        self.listener.close()
        os.close(self.memory_fd)
        return status


class JoiningDaemon(Daemon):
    """One whose cluster is never joined."""

    def has_joined(self):
        return True
