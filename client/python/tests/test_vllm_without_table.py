"""vLLM's worker and scheduler without a table: what is stored in the cache is what another engine recorded, to the bit. Needs torch, and
no vLLM."""
import os
import sys
import unittest

import support

try:
    import torch
except ImportError:
    print("skipped: the Python module torch is missing")
    sys.exit(support.SKIPPED)

from kvcobra.vllm.counters import Counters
from kvcobra.vllm.loader import Loader
from kvcobra.vllm.metadata import Load, Rows, Text
from kvcobra.vllm.publisher import Publisher
from kvcobra.vllm.recording import Recorder, slots
import test_vllm_worker as of_worker
from vllm_standin import FakeLog

L, H, D, BLOCK, BLOCKS = of_worker.L, of_worker.H, of_worker.D, of_worker.BLOCK, of_worker.BLOCKS
MODEL_ID, N, FOUND = bytes(range(32)), 256, 192  # a match leaves a token, and whole chunks


class Exact(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M", "--exact=yes")
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.log, self.counters = FakeLog(), Counters()
        self.vectors = of_worker.prompt(7, N)

    def open(self, exact=torch.bfloat16):
        daemon = of_worker.new_daemon(self.daemon.socket, MODEL_ID, self.log, exact=exact)
        self.addCleanup(daemon.close)
        return daemon

    def text(self, daemon):
        """As the scheduler makes it, with the table that is active now."""
        return Text(tuple(range(1, N + 1)), b"", (daemon.models()[0][0].info.table_digest,))

    def publish(self, text):
        publisher = Publisher(self.open(), 1 << 26, self.counters)
        recorder = Recorder(BLOCKS, 0, range(L), publisher.reserve, self.counters)
        recorder.start("a", text, 0)
        blocks = tuple(range(100, 100 + N // BLOCK))
        recorder.expect([Rows("a", 0, N, (blocks,))])
        for layer in range(L):
            recorder.take(layer, self.vectors[layer, 0], self.vectors[layer, 1], slots(blocks, BLOCK, 0, N))
        publisher.put(recorder.end())
        publisher.close()
        return self.counters.take().get("published_tokens", 0)

    def load(self, text, daemon):
        """What was stored of the text's tokens, and the failed blocks."""
        cache = torch.zeros((L, 2, FOUND, H, D), dtype=torch.bfloat16)

        def store(layer, key, value, where):
            cache[layer, 0, where - BLOCK], cache[layer, 1, where - BLOCK] = key, value

        loader = Loader(daemon, store, BLOCKS, torch.bfloat16, torch.device("cpu"), self.counters)
        return cache, loader.load(Load("a", text, 0, FOUND, (tuple(range(1, 1 + FOUND // BLOCK)),)))

    def test_loaded_is_recorded_to_the_bit(self):
        daemon = self.open()
        text = self.text(daemon)
        daemon.describe()
        self.assertIn("the engine's own bytes", str(self.log.lines))
        self.assertEqual(self.publish(text), N)
        cache, failed = self.load(text, daemon)
        self.assertEqual(failed, set())
        self.assertTrue(torch.equal(cache.view(torch.int16), self.vectors[:, :, :FOUND].contiguous().view(torch.int16)))

    def test_other_engines_find_nothing(self):
        daemon = self.open()
        self.assertEqual(self.publish(self.text(daemon)), N)
        for exact in (None, torch.float16):
            self.assertEqual(self.open(exact).models(), [])
        self.assertEqual(len(self.open().models()), 1)

    def test_a_table_is_activated(self):
        """A load that was promised before finishes or fails; prompts from then on have the table."""
        daemon = self.open()
        text = self.text(daemon)
        self.assertEqual(self.publish(text), N)
        path = os.path.join(self.folder, "random.table")
        table = support.write_table(path, support.geometry(), model=MODEL_ID)
        self.daemon.activate(path)
        self.assertEqual(self.text(daemon).tables[0], daemon.models()[0][0].info.table_digest)
        self.assertNotEqual(self.text(daemon).tables, text.tables)
        cache, failed = self.load(text, daemon)
        if not failed:
            self.assertTrue(torch.equal(cache, self.vectors[:, :, :FOUND]))
        self.assertEqual(self.publish(self.text(daemon)), N)
        self.assertEqual(self.load(self.text(daemon), daemon)[1], set())
        self.assertEqual(len(table), 32)


if __name__ == "__main__":
    support.main()
