"""Two processes and a real kvcobrad: publishing, matching, fetching, and a daemon that goes away."""
import asyncio
import errno
import json
import signal
import subprocess
import sys
import time

import numpy

import kvcobra
import support
from support import N_HEADS, fill, geometry, vectors

TOKENS = list(range(1000, 1300))

# another process: publishes the text of fill()
PUBLISH = """
import sys
sys.path.insert(0, sys.argv[3])
import kvcobra, support
with kvcobra.Client(sys.argv[1]) as client:
    model = kvcobra.Model(client, sys.argv[2], support.geometry())
    with kvcobra.Sequence(model, keys="after", publish_all=bool(int(sys.argv[4]))) as sequence:
        support.fill(sequence, 300)
        print(sequence.commit(range(1000, 1300)))
"""


class Shared(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon()
        self.enterContext(self.daemon) if hasattr(self, "enterContext") else self.addCleanup(self.daemon.__exit__, None)
        self.daemon.activate(self.table)

    def publish(self, everything):
        folder = support.os.path.dirname(support.__file__)
        done = subprocess.run([sys.executable, "-B", "-c", PUBLISH, self.daemon.socket, self.model_id.hex(), folder,
                               str(int(everything))], check=True, capture_output=True, text=True)
        return int(done.stdout)

    def test_match(self):
        self.assertEqual(self.publish(False), 192)  # 4 whole chunks, of which the newest 64 tokens stay private
        client, model = self.connected(self.daemon)
        self.assertTrue(client.info.connected)
        self.assertEqual(client.geometry(self.model_id).n_layers, geometry().n_layers)
        sequence = kvcobra.Sequence(model, keys="after")
        self.assertEqual(sequence.match(TOKENS), 192)
        self.assertEqual(kvcobra.Sequence(model, keys="after", salt=b"other").match(TOKENS), 0)
        self.assertEqual(kvcobra.Sequence(model, keys="after").match([1] + TOKENS[1:]), 0)
        alone = kvcobra.Sequence(model, keys="after")
        fill(alone, 195)
        fill(alone, 5, 195)  # two chunks are packed now
        for layer in range(support.N_LAYERS):
            numpy.testing.assert_array_equal(sequence.read(layer, "k", 0, 128), alone.read(layer, "k", 0, 128))
        fill(sequence, 108, 192)
        self.assertEqual(sequence.length, 300)
        self.assertGreater(sequence.usage.shared_bytes, 0)

    def test_window(self):
        """A match of layers with a window finds the end of a text whose beginning is gone."""
        self.assertEqual(self.publish(True), 256)
        _, model = self.connected(self.daemon)
        self.daemon.command(*self.daemon.flush_command(model.info.table_digest, TOKENS[:128]))
        self.assertEqual(kvcobra.Sequence(model, keys="after").match(TOKENS), 0)
        sequence = kvcobra.Sequence(model, keys="after", window=100)
        self.assertEqual(sequence.match(TOKENS), 256)
        self.assertEqual([model.peek(TOKENS, window=window) for window in (0, 100, 129, 200)], [0, 256, 256, 0])
        self.assertEqual(model.prefetch(TOKENS, window=100), 0)
        sequence.read(0, "k", 128, 128)
        with self.assertRaisesRegex(kvcobra.Error, "has no tokens before 128"):
            sequence.read(0, "k", 127, 2)
        with self.assertRaisesRegex(ValueError, "window is -1"):
            kvcobra.Sequence(model, window=-1)

    def test_timeout(self):
        """A stopped daemon accepts connections, and answers nothing."""
        with kvcobra.Client(self.daemon.socket, timeout=0.5) as client:
            self.daemon.process.send_signal(signal.SIGSTOP)
            try:
                before = time.monotonic()
                with self.assertRaises(kvcobra.Error):
                    client.geometry(self.model_id)
                self.assertFalse(client.info.connected)
                with self.assertRaises(kvcobra.Error):
                    kvcobra.Client(self.daemon.socket, timeout=0.1)
                self.assertLess(time.monotonic() - before, 10, "the library's default is 12 s, twice")
            finally:
                self.daemon.process.send_signal(signal.SIGCONT)

    def test_request(self):
        client, _ = self.connected(self.daemon)
        body, fd = client.request(20)  # ListTables
        self.assertIn(bytes(self.model_id), body)
        self.assertEqual(fd, -1)
        with self.assertRaises(kvcobra.Error) as refused:
            client.request(41)  # Evict, which only operators may send
        self.assertEqual(refused.exception.errno, errno.EPERM)

    def test_geometry_of_the_daemon(self):
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        model = kvcobra.Model(client, self.model_id.hex())
        self.assertEqual(model.geometry, geometry())
        with self.assertRaises(kvcobra.Error) as raised:
            client.geometry(bytes(32))
        self.assertEqual(raised.exception.errno, errno.ENODATA)

    def test_models(self):
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        model, = client.models()
        self.assertEqual((model.model_id, model.bpd_code), (self.model_id, kvcobra.Model(client).info.bpd_code))
        self.assertEqual(model.table_digest, kvcobra.Model(client, self.model_id.hex()[:6].upper()).info.table_digest)
        self.assertEqual(client.quota_bytes(), 64 << 20)
        with self.assertRaisesRegex(ValueError, f"begins no model of kvcobrad, which has {self.model_id.hex()[:12]}"):
            kvcobra.Model(client, "ffffff")
        with self.assertRaises(ValueError):
            kvcobra.Model(client, "no digits")

        others = [kvcobra.ActiveModel(bytes([1, i]) + bytes(30), bytes(32), 3.0) for i in range(2)]
        client.models = lambda: others
        for model_id, sentence in ((None, "active tables of 2 models"), ("01", "begins several models")):
            with self.assertRaisesRegex(ValueError, f"{sentence}.*: 010000000000, 010100000000"):
                client.find_model(model_id)
        self.assertEqual(client.find_model("0101"), others[1].model_id)
        client.models = lambda: []
        with self.assertRaises(kvcobra.Error) as raised:
            client.find_model()
        self.assertEqual(raised.exception.errno, errno.ENOENT)

    def test_messages(self):
        from kvcobra import _messages

        for value, data in ((0, "00"), (127, "7f"), (300, "ac02"), (2**64 - 1, "ffffffffffffffffff01")):
            self.assertEqual(_messages.varint(value).hex(), data)
            self.assertEqual(_messages.fields(b"\x08" + bytes.fromhex(data)), {1: [value]})
        self.assertEqual(_messages.fields(bytes.fromhex("210000000000000840120161120162")), {4: [3.0], 2: [b"a", b"b"]})
        for bad in ("08", "0880", "2100", "1202", "08" + "80" * 11 + "00", "0b"):
            with self.assertRaises(ValueError):
                _messages.fields(bytes.fromhex(bad))

    def test_geometry_of_a_table(self):
        client = kvcobra.Client(False)
        self.addCleanup(client.close)
        model = kvcobra.Model(client, table=self.table)
        self.assertEqual((model.model_id, model.geometry), (self.model_id, geometry()))

    def test_publish_all_and_peek(self):
        client, model = self.connected(self.daemon)
        self.assertEqual(model.peek(TOKENS), 0)
        self.assertEqual(self.publish(True), 256)
        self.assertEqual(model.peek(TOKENS), 256)
        self.assertEqual(model.peek(TOKENS, salt=b"other"), 0)
        self.assertEqual(model.peek(TOKENS, repeatable=True), 0)
        self.assertEqual(model.peek(TOKENS[:100], table=model.info.table_digest), 64)

    def test_prefetch_without_a_disk(self):
        self.publish(True)
        client, model = self.connected(self.daemon)
        self.assertEqual(model.prefetch(TOKENS), 0)
        self.assertEqual(model.prefetch(TOKENS, salt=b"other", fetch_ms=100), 0)
        with self.assertRaises(kvcobra.Error):
            model.prefetch(TOKENS, fetch_ms=9000)
        model.cancel_prefetch()

    def test_a_counted_match_finds_the_same(self):
        self.publish(True)
        client, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, keys="after", counted=True) as sequence:
            self.assertEqual(sequence.match(TOKENS), 256)

    def test_fetch(self):
        self.publish(True)
        client, model = self.connected(self.daemon)
        sequence = kvcobra.Sequence(model, keys="after")
        with sequence.fetch(TOKENS[:256], leave=0) as fetch:
            with self.assertRaisesRegex(ValueError, "fetch"):
                sequence.usage
            self.assertEqual(fetch.result(support.TIMEOUT_S), 256)
            self.assertTrue(fetch.done())
            self.assertEqual(fetch.result(), 256)
        fetch.cancel()
        self.assertEqual(sequence.length, 256)
        with self.assertRaisesRegex(ValueError, "fetch is closed"):
            fetch.result()

    def test_fetch_in_asyncio(self):
        self.publish(True)
        client, model = self.connected(self.daemon)

        async def run():
            sequences = [kvcobra.Sequence(model, keys="after") for _ in range(3)]
            fetches = [s.fetch(TOKENS) for s in sequences]
            return [await f for f in fetches]

        self.assertEqual(asyncio.run(run()), [256] * 3)

    def test_a_closed_client_ends_its_fetches(self):
        self.publish(True)
        client, model = self.connected(self.daemon)
        fetch = kvcobra.Sequence(model, keys="after").fetch(TOKENS)
        client.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            fetch.result()

    def test_a_daemon_that_is_killed(self):
        self.publish(True)
        client, model = self.connected(self.daemon)
        sequence = kvcobra.Sequence(model, keys="after")
        self.assertEqual(sequence.match(TOKENS), 256)
        before = sequence.attend(0, vectors(5, 1, N_HEADS))
        self.daemon.kill()
        numpy.testing.assert_array_equal(sequence.attend(0, vectors(5, 1, N_HEADS)), before)  # its pages stay mapped
        self.assertEqual(kvcobra.Sequence(model, keys="after").match(TOKENS), 0)
        self.assertFalse(client.info.connected)
        fill(sequence, 44, 256)
        self.assertLessEqual(sequence.commit(TOKENS), 300)

    def test_two_tables(self):
        """A sequence with a pinned table finds the pages of that table only."""
        self.publish(True)
        client, model = self.connected(self.daemon)
        first = model.info.table_digest
        second = support.os.path.join(self.folder, "2.table")
        support.write_table(second, seed=2)
        self.daemon.activate(second)
        self.assertEqual(kvcobra.Sequence(model, keys="after", table=first).match(TOKENS), 256)
        tables = json.loads(self.daemon.command("table", "list", "--json"))
        self.assertEqual(len(tables), 2)
        with self.assertRaises(kvcobra.Error) as raised:
            kvcobra.Sequence(model, table=bytes(32))
        self.assertEqual(raised.exception.errno, errno.ENOENT)


if __name__ == "__main__":
    support.main()
