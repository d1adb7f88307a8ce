#!/usr/bin/env python3
"""kvcobra-cluster and servers that speak TLS, with certificates that this test makes.

    test_tls.py KVCOBRA_CLUSTER [NAME...]

Exit 77: there is no redis-server with TLS, no openssl, or kvcobra-cluster was built without TLS.
"""
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from checks import check, equal, name, value
from daemon_side import GET, READY, Daemon, JoiningDaemon
from fake_servers import NoTls
from servers import LIMIT_S, Server, end_all, free_port, wait_until

PROGRAM = sys.argv[1]
FOLDER = tempfile.mkdtemp(prefix="kvcobra-tls-")


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=FOLDER)


KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout".split()


def path(file):
    return os.path.join(FOLDER, file)


def make_authority(authority):
    openssl("req", "-x509", *KEY, authority + ".key", "-out", authority + ".crt", "-subj", "/CN=" + authority, "-days", "10")


def make_certificate(subject, authority, names, days=10):
    """Files SUBJECT.crt and SUBJECT.key; @names: of the server."""
    openssl("req", *KEY, subject + ".key", "-out", subject + ".csr", "-subj", "/CN=" + subject)
    with open(path(subject + ".names"), "w", encoding="ascii") as f:
        f.write(f"subjectAltName={names}\n")
    openssl("x509", "-req", "-in", subject + ".csr", "-CA", authority + ".crt", "-CAkey", authority + ".key", "-CAcreateserial",
            "-days", str(days), "-extfile", subject + ".names", "-out", subject + ".crt")


class TlsServer(Server):
    """A server with a port for TLS alone."""

    def __init__(self, program, certificate, is_cluster=False, *options):
        self.tls_port = free_port()
        super().__init__(program, FOLDER, is_cluster, "--port", "0", "--tls-port", str(self.tls_port), "--tls-replication", "yes",
                         "--tls-cluster", "yes", "--tls-cert-file", path(certificate + ".crt"), "--tls-key-file", path(certificate + ".key"),
                         "--tls-ca-cert-file", path("ca.crt"), *(options or ("--tls-auth-clients", "no")))
        self.port = self.tls_port

    def connect(self):
        if self.connection is None:
            context = ssl.create_default_context(cafile=path("ca.crt"))
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # some have certificates that no client accepts
            context.load_cert_chain(path("client.crt"), path("client.key"))
            plain = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
            self.connection = context.wrap_socket(plain)
            self.file = self.connection.makefile("rb")


def daemon(what, server, kind=Daemon, **settings):
    return kind(PROGRAM, path(what), f"127.0.0.1:{server.port}", **{"tls": "yes", "tls-ca-file": path("ca.crt"), "stall-ms": 60000, **settings})


def refused(what, server, sentence, **settings):
    """It does not join, for that reason, and answers all the time."""
    d = daemon(what, server, JoiningDaemon, **settings)
    wait_until(f"{what}: {sentence}", lambda: sentence in d.status().sentence)
    check(d.status().counters["state"] != READY)
    equal(d.exists([name(1)]).result, "EAGAIN")
    equal(d.stop(), 0)


def test_one_server(program):
    """Pages in both directions, larger than a record of TLS, many at a time; a password needs no other permission."""
    with open(os.open(path("password"), os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
        f.write("geheim\n")
    server = TlsServer(program, "server", False, "--tls-auth-clients", "no", "--requirepass", "geheim")
    server.wait("AUTH", "geheim")
    d = daemon("one", server, **{"password-file": path("password"), "write-bytes-per-second": "1G"})
    pages = {name(i): value(i, 1 << 20) for i in range(8)}
    for n, v in pages.items():
        equal(d.put(n, v).result, 0)
    equal(d.exists([*pages, name(100)]).bits, [1] * 8 + [0])
    room = (1 << 20) + 64
    gets = {d.send(GET, [n], 20000, i * room, room): (n, i * room) for i, n in enumerate(pages)}
    for _ in pages:
        reply = d.receive()
        n, offset = gets[reply.id]
        equal((reply.result, d.memory[offset:offset + reply.bytes] == pages[n]), (0, True))
    equal(d.status().counters["node_failures"], 0)
    equal(d.stop(), 0)
    server.stop()


def test_cluster(program):
    """Three masters with ports for TLS alone: they name each other by these ports, and a slot that moves is followed."""
    servers = [TlsServer(program, "server", True) for _ in range(3)]
    bounds = [0, 5461, 10923, 16384]
    for i, server in enumerate(servers):
        server.wait()
        server.ask("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
        server.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    for server in servers[1:]:
        server.ask("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
    wait_until("the cluster works", lambda: all("cluster_state:ok" in s.ask("CLUSTER", "INFO").decode() and
                                                "cluster_known_nodes:3" in s.ask("CLUSTER", "INFO").decode() for s in servers))
    d = daemon("cluster", servers[0])
    names = [name(i) for i in range(60)]
    for i, n in enumerate(names):
        equal(d.put(n, value(i)).result, 0)
    equal(d.exists(names).bits, [1] * 60)
    equal([d.get(n) for n in names], [value(i) for i in range(60)])
    equal(d.status().counters["nodes_ready"], 3)
    check(min(s.ask("DBSIZE") for s in servers) > 0)
    equal(d.stop(), 0)
    for server in servers:
        server.stop()


def test_certificates(program):
    """What is wrong with a certificate is said, and nothing is sent to such a server."""
    server = TlsServer(program, "server")
    for other in ("expired", "named"):
        make_certificate(other, "ca", "IP:127.0.0.1" if other == "expired" else "DNS:redis.example", -1 if other == "expired" else 10)
    expired, named = TlsServer(program, "expired"), TlsServer(program, "named")
    for s in (server, expired, named):
        s.wait()
    refused("wrong-ca", server, "not trusted", **{"tls-ca-file": path("other.crt")})
    refused("expired", expired, "certificate has expired")
    refused("wrong-name", named, "not for 127.0.0.1")
    refused("other-name", server, "not for redis.example", **{"tls-server-name": "redis.example"})
    d = daemon("right-name", named, **{"tls-server-name": "redis.example"})
    equal(d.put(name(1), value(1)).result, 0)
    equal(d.stop(), 0)
    for s in (server, expired, named):
        s.stop()


def test_client_certificate(program):
    """A server that wants certificates of clients, as Redis does if nothing else is set."""
    server = TlsServer(program, "server", False, "--tls-auth-clients", "yes")
    server.wait()
    refused("no-certificate", server, "certificate required")
    os.chmod(path("client.key"), 0o600)
    d = daemon("certificate", server, **{"tls-cert-file": path("client.crt"), "tls-key-file": path("client.key")})
    equal(d.put(name(1), value(1)).result, 0)
    equal(d.stop(), 0)
    server.stop()


def test_other_protocols(program):
    """A server without TLS, one that says nothing, answers something else or closes: a sentence each, and no wait."""
    plain = Server(program, FOLDER, False)
    plain.wait()
    refused("plain", plain, "may not speak TLS")  # it waits for the end of a line
    plain.stop()
    for what, answer, sentence in (("silent", None, "handshake did not end"), ("closing", b"", "ended the TLS"),
                                   ("other", b"-ERR unknown command\r\n", "does not speak TLS")):
        d = JoiningDaemon(PROGRAM, path(what), f"127.0.0.1:{NoTls(answer).port}", tls="yes", **{"connect-ms": 300})
        slowest, end = 0, time.monotonic() + LIMIT_S
        while sentence not in d.status().sentence:  # answered while handshakes wait
            began = time.monotonic()
            equal(d.exists([name(1)]).result, "EAGAIN")
            slowest = max(slowest, time.monotonic() - began)
            check(began < end, d.status().sentence)
        check(slowest < 5, slowest)
        equal(d.stop(), 0)


def test_renewal(program):
    """Certificates that are replaced are read again; a file that cannot be read leaves the old ones in use."""
    server = TlsServer(program, "server")
    server.wait()
    shutil.copy(path("other.crt"), path("renewed.crt"))
    d = daemon("renewal", server, JoiningDaemon, **{"tls-ca-file": path("renewed.crt")})
    wait_until("the wrong authority", lambda: "not trusted" in d.status().sentence)
    with open(path("renewed.new"), "w", encoding="ascii") as f:
        f.write("no certificate\n")
    os.replace(path("renewed.new"), path("renewed.crt"))
    wait_until("it says so", lambda: any(e["event"] == "certificates" and "keeping the old" in e["message"] + str(e) for e in d.log()))
    shutil.copy(path("ca.crt"), path("renewed.new"))
    os.replace(path("renewed.new"), path("renewed.crt"))
    wait_until("it joins", lambda: d.status().counters["state"] == READY)
    check(any(e["event"] == "certificates" and e["message"] == "read again" for e in d.log()))
    equal(d.stop(), 0)
    server.stop()


def test_settings(_):
    """Wrong files are found by --check-config."""
    with open(path("empty"), "w", encoding="ascii"):
        pass
    os.chmod(path("client.key"), 0o644)
    cases = (({"tls-ca-file": path("ca.crt")}, "need tls = yes"),
             ({"tls": "yes", "tls-ca-file": path("none")}, "tls-ca-file"),
             ({"tls": "yes", "tls-ca-file": path("empty")}, "tls-ca-file"),
             ({"tls": "yes", "tls-cert-file": path("client.crt")}, "belong together"),
             ({"tls": "yes", "tls-cert-file": path("client.crt"), "tls-key-file": path("client.key")}, "chmod 0400"),
             ({"tls": "yes", "tls-cert-file": path("client.crt"), "tls-key-file": "redis-key"}, "passes no credential"))
    for settings, sentence in cases:
        with open(path("check.conf"), "w", encoding="utf-8") as f:
            f.writelines(f"{k} = {v}\n" for k, v in {"servers": "10.0.0.1:6379", **settings}.items())
        p = subprocess.run([PROGRAM, "--check-config", path("check.conf")], capture_output=True, text=True, check=False)
        equal(p.returncode, 1)
        check(sentence in p.stderr and p.stderr.count("\n") == 1, settings, p.stderr)
    os.chmod(path("client.key"), 0o600)


def has_tls():
    with open(path("check.conf"), "w", encoding="utf-8") as f:
        f.write("servers = 10.0.0.1:6379\ntls = yes\n")
    p = subprocess.run([PROGRAM, "--check-config", path("check.conf")], capture_output=True, text=True, check=False)
    return "without TLS" not in p.stderr


def server_has_tls(program):
    p = subprocess.run([program, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none", "--dir", FOLDER], capture_output=True,
                       text=True, timeout=LIMIT_S, check=False)
    return "Bad directive" not in p.stdout + p.stderr


def main():
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if not program or not shutil.which("openssl") or not has_tls() or not server_has_tls(program):
        print("skipped: no redis-server with TLS, no openssl, or kvcobra-cluster was built without TLS")
        return 77
    for authority in ("ca", "other"):
        make_authority(authority)
    make_certificate("server", "ca", "IP:127.0.0.1,DNS:localhost")
    make_certificate("client", "ca", "DNS:client")
    for test in (test_settings, test_one_server, test_cluster, test_certificates, test_client_certificate, test_other_protocols,
                 test_renewal):
        if len(sys.argv) == 2 or test.__name__ in sys.argv[2:]:
            test(program)
            print("ok", test.__name__, flush=True)
    return 0


if __name__ == "__main__":
    try:
        status = main()
    finally:
        end_all()
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(status)
