"""What the tests of the Python package share: the programs under test, tables, vectors, daemons, and checks.

Environment, set by tests/python/meson.build: KVC_SOURCE_ROOT, KVC_WRITE_TABLE, KVC_KVCOBRAD and KVC_KVCOBRA name the
programs, KVCOBRA_LIBRARY the library. A test program ends with support.main().
"""
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
TIMEOUT_S = 120

try:
    import cffi  # noqa: F401
    import numpy
except ImportError as e:
    print(f"skipped: the Python module {e.name} is missing: install python3-cffi and python3-numpy")
    sys.exit(SKIPPED)

import kvcobra  # noqa: E402

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM = 3, 4, 2, 64


def program(variable):
    path = os.environ.get(variable)
    if not path:
        sys.exit(f"{variable} is not set: run this test through meson")
    return path


def write_table(path, g=None, seed=1, bpd=4.0, state_bits=0, model=None):
    """Writes a random table file for a model of geometry @g. @state_bits: of trellises; 0: scalar levels. @model: its digest; None: one
    that is the same for all. Returns it."""
    g = g or geometry()
    arguments = [path, seed, f"{bpd}:{state_bits}", model.hex() if model else "-", g.n_layers, g.n_heads, g.n_kv_heads, g.head_dim, repr(g.attn_scale), *map(repr, g.rope_freq)]
    done = subprocess.run([program("KVC_WRITE_TABLE"), *map(str, arguments)], check=True, capture_output=True, text=True)
    return bytes.fromhex(done.stdout.strip())


def geometry(shape=(N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM), base=10000.0):
    n_layers, n_heads, n_kv_heads, d = shape
    frequencies = tuple(base ** (-2 * i / d) for i in range(d // 2))
    return kvcobra.Geometry(n_layers, n_heads, n_kv_heads, d, d, 1 / d**0.5, frequencies)


def vectors(seed, n, heads=N_KV_HEADS):
    """[n, heads, HEAD_DIM] N(0, 1) numbers."""
    return numpy.random.default_rng(seed).standard_normal((n, heads, HEAD_DIM), dtype=numpy.float32)


def fill(sequence, n, first=0):
    """Appends positions @first .. @first + @n - 1 of one fixed text to every layer."""
    for layer in range(N_LAYERS):
        k, v = (vectors(10 * layer + side, first + n)[first:] for side in (1, 2))
        sequence.append(layer, k, v)


def rotate(x, first=0, sign=1, base=10000.0):
    """RoPE of half-split pairs, in binary64: @x at positions first, first + 1, ..."""
    half = x.shape[-1] // 2
    angles = numpy.arange(first, first + x.shape[0])[:, None, None] * base ** (-numpy.arange(half) / half) * sign
    a, b = x[..., :half].astype(float), x[..., half:].astype(float)
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


class Daemon:
    """A kvcobrad with its sockets in a private folder. A context manager that ends it and checks its exit status."""

    def __init__(self, *options):
        self.folder = tempfile.mkdtemp(prefix="kvcobra-python-")
        self.socket = os.path.join(self.folder, "socket")
        self.operator_socket = os.path.join(self.folder, "operator")
        self.options = options
        self.process = None
        self.start()

    def start(self):
        """Returns when the daemon listens."""
        ready, write = os.pipe()
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = self.launch(
                [program("KVC_KVCOBRAD"), f"--socket={self.socket}", f"--operator-socket={self.operator_socket}",
                 f"--ready-fd={write}", *(self.options or ("--pool-bytes=64M", "--arena-bytes=8M"))], write, log)
        os.close(write)
        try:
            if not select.select([ready], [], [], TIMEOUT_S)[0] or os.read(ready, 1) == b"":
                raise RuntimeError("kvcobrad did not get ready: " + self.log())
        finally:
            os.close(ready)

    @staticmethod
    def launch(command, ready, log):
        """@ready: the descriptor that @command names."""
        return subprocess.Popen(command, pass_fds=(ready,), stderr=log)

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            return file.read()

    def command(self, *arguments):
        done = subprocess.run([program("KVC_KVCOBRA"), *arguments, "--socket", self.operator_socket], capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise RuntimeError(f"kvcobra {arguments}: {done.stderr}")
        return done.stdout

    def activate(self, path):
        """Stages and activates the table file @path."""
        self.command("table", "stage", path)
        self.command("table", "activate", path)

    def flush_command(self, table, tokens):
        """What makes the pages of @tokens, with @table, unfindable."""
        path = os.path.join(self.folder, "flushed")
        with open(path, "w", encoding="utf-8") as file:
            file.write(" ".join(map(str, tokens)))
        return ["flush", "--tenant", f"uid-{os.geteuid()}", "--table", table.hex(), "--from", "0", "--tokens-file", path, "--yes"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(TIMEOUT_S)
        log = self.log()
        shutil.rmtree(self.folder)
        if exception[0] is None and status not in (0, -signal.SIGKILL):
            raise AssertionError(f"kvcobrad ended with {status}: {log}")


class Case(unittest.TestCase):
    """A case with a folder of its own and a table file in it."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvcobra-python-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.table = os.path.join(self.folder, "t.table")
        self.model_id = write_table(self.table)

    def embedded(self, **options):
        """A client without a daemon, and its model."""
        client = kvcobra.Client(False)
        self.addCleanup(client.close)
        return client, kvcobra.Model(client, self.model_id, geometry(), table=self.table, **options)

    def connected(self, daemon, **options):
        client = kvcobra.Client(daemon.socket)
        self.addCleanup(client.close)
        return client, kvcobra.Model(client, self.model_id, geometry(), **options)


def main():
    unittest.main(verbosity=2)
