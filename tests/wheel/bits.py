"""Whether two builds of KV-COBRA compute the same bits: decoded vectors, which show every code, attention, and the pages in the pool.

    python3 bits.py PACKAGE TREE TREE TABLE...    PACKAGE: the folder that has the Python package kvcobra
                                                  TREE: bin/kvcobra, bin/kvcobrad and lib/libkvcobra.so.0 of one build

For each table and build, a process appends random keys and values of the table's geometry, reads all of them back, and attends.
Then it publishes them through a daemon of the same build, and compares the pages that the pool has with those of the other build, byte
by byte. The daemons have one key file, since the key of a chunk stands in its page. Exit status 1: something differs.
"""
import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile

TIMEOUT_S = 120
N_PROMPT, N_STEPS = 389, 2  # a prompt of 6 chunks and a part, then tokens one at a time
N_CHUNKS = (N_PROMPT + N_STEPS) // 64
MODES = [{"keys": keys, "pairs": pairs} for keys in ("before", "after") for pairs in ("half-split", "interleaved")]
HEADER_BYTES, MAGIC = 128, b"KVPG\x01\x00"  # of proto/page.h, with the format
KEYS = f"index {'17' * 32}\nseal 1 {'2b' * 32}\n"


# ---- in a process of one build ----

def vectors(random, geometry, sequence, done):
    """Appends to @sequence, reads back and attends. @done: a digest that gets all results."""
    import numpy
    n_kv, n_q, d = geometry.n_kv_heads, geometry.n_heads, geometry.head_dim
    for layer in range(geometry.n_layers):
        for n in (N_PROMPT, *[1] * N_STEPS):
            k, v = (random.standard_normal((n, n_kv, d), numpy.float32) for _ in "kv")
            q = random.standard_normal((n, n_q, d), numpy.float32)
            sequence.append(layer, k, v)
            done.update(numpy.ascontiguousarray(sequence.attend(layer, q)).tobytes())
        for side in "kv":
            done.update(sequence.read(layer, side, 0, N_PROMPT + N_STEPS).tobytes())


def mapped_pages(table_digest):
    """Header and payload of the table's pages in the shared memory that this process maps, by their chunk keys."""
    pages = {}
    with open("/proc/self/maps", encoding="utf-8") as maps:
        areas = [line.split() for line in maps if "/memfd:" in line]
    for area in areas:
        if area[1][0] != "r":
            continue
        first, end = (int(x, 16) for x in area[0].split("-"))
        memory = ctypes.string_at(first, end - first)
        at = memory.find(MAGIC)
        while at >= 0:
            header = memory[at:at + HEADER_BYTES]
            if header[8:40] == table_digest:
                page = memory[at:at + HEADER_BYTES + int.from_bytes(header[104:112], "little")]
                if pages.setdefault(header[72:88].hex(), page) != page:
                    sys.exit(f"two copies of a page differ: {header[72:88].hex()}")
            at = memory.find(MAGIC, at + 1)
    return pages


def measure(socket, table):
    import kvcobra
    import numpy
    done = hashlib.sha256()
    tokens = list(range(N_PROMPT + N_STEPS))
    with kvcobra.Client(False) as client:
        model = kvcobra.Model(client, table=table)
        for mode in MODES:
            with kvcobra.Sequence(model, **mode) as sequence:
                vectors(numpy.random.default_rng(7), model.geometry, sequence, done)
    with kvcobra.Client(socket) as writer, kvcobra.Client(socket) as reader:
        model = kvcobra.Model(writer)
        for number, mode in enumerate(MODES):
            with kvcobra.Sequence(model, salt=bytes([number]), publish_all=True, **mode) as sequence:
                vectors(numpy.random.default_rng(7), model.geometry, sequence, hashlib.sha256())
                sequence.commit(tokens)
        model, sequences = kvcobra.Model(reader), []
        for number, mode in enumerate(MODES):  # what is matched is mapped
            sequences.append(kvcobra.Sequence(model, salt=bytes([number]), publish_all=True, **mode))
            if sequences[-1].match(tokens) != N_CHUNKS * 64:
                sys.exit("a prompt that was published is not found")
        pages = mapped_pages(model.info.table_digest)
        for sequence in sequences:
            sequence.close()
    if len(pages) != len(MODES) * N_CHUNKS:
        sys.exit(f"{len(pages)} pages were found in the pool; expected {len(MODES) * N_CHUNKS}")
    whole = hashlib.sha256(b"".join(pages[key] for key in sorted(pages))).hexdigest()
    return {"vectors": done.hexdigest(), "pages": whole, "n_pages": len(pages), "bytes": sum(map(len, pages.values()))}


# ---- for each build ----

def of_build(folder, package, tree, table):
    """What measure() returns, in a process with the library and the daemon of @tree."""
    socket, operator, keys = (os.path.join(folder, name) for name in ("socket", "operator", "keys"))
    with open(os.open(keys, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(KEYS)
    ready, write = os.pipe()
    with open(os.path.join(folder, "log"), "wb") as log:
        daemon = subprocess.Popen([os.path.join(tree, "bin", "kvcobrad"), f"--socket={socket}", f"--operator-socket={operator}", f"--key-file={keys}",
                                   f"--ready-fd={write}", "--pool-bytes=128M", "--arena-bytes=16M"], pass_fds=(write,), stderr=log)
    os.close(write)
    try:
        if not select.select([ready], [], [], TIMEOUT_S)[0] or not os.read(ready, 1):
            sys.exit(f"the daemon of {tree} did not start: {open(os.path.join(folder, 'log'), encoding='utf-8').read()}")
        for verb in ("stage", "activate"):  # golden vectors are decoded and compared here
            subprocess.run([os.path.join(tree, "bin", "kvcobra"), "table", verb, table, "--socket", operator], check=True, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "PYTHONPATH": package, "KVCOBRA_LIBRARY": os.path.join(tree, "lib", "libkvcobra.so.0")}
        done = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), socket, table], check=True, stdout=subprocess.PIPE, text=True,
                              env=environment, timeout=10 * TIMEOUT_S)
        return json.loads(done.stdout)
    finally:
        os.close(ready)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(TIMEOUT_S)


def main(arguments):
    if len(arguments) == 2:
        print(json.dumps(measure(*arguments)))
        return 0
    package, tree, other, *tables = map(os.path.abspath, arguments)
    n_different = 0
    for table in tables:
        with tempfile.TemporaryDirectory(prefix="kvcobra-bits-") as folder:
            one, two = (of_build(folder, package, x, table) for x in (tree, other))
        n_different += one != two
        print(f"{os.path.basename(table)}: {one['n_pages']} pages of {one['bytes']} bytes {one['pages'][:16]}, vectors {one['vectors'][:16]}"
              + ("" if one == two else f"; the other build: pages {two['pages'][:16]}, vectors {two['vectors'][:16]}"))
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
