"""A worker of vLLM whose tensors are on a GPU: recording, publishing and loading, against a real kvcobrad. Needs torch, and no vLLM. The
GPU is the stand-in driver's, or with TEST_GPU torch's."""
import os
import sys
import unittest

import support

try:
    import torch
except ImportError:
    print("skipped: the Python module torch is missing")
    sys.exit(support.SKIPPED)

import kvcobra
import torch_on_standin
from kvcobra.vllm import geometry
from kvcobra.vllm.counters import Counters
from kvcobra.vllm.daemon import Daemon, Service
from kvcobra.vllm.loader import Loader
from kvcobra.vllm.metadata import Load, Rows, Text
from kvcobra.vllm.publisher import Publisher
from kvcobra.vllm.recording import Recorder, slots
from test_gpu import UUID, Driver
from torch_on_standin import DEVICE
from vllm_standin import FakeLog, one_list

L, H, D = support.N_LAYERS, support.N_KV_HEADS, support.HEAD_DIM
BLOCK = 32
BLOCKS = one_list(BLOCK, L)
NEIGHBOURS = 3  # rows of other requests before and behind those of a prompt


class Worker(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M")  # every client has an arena
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)
        device = torch_on_standin.device(Driver, UUID)
        self.step = device.__enter__()
        self.addCleanup(device.__exit__, None, None, None)
        self.counters, self.log = Counters(), FakeLog()

    def connector(self, gpu):
        g = geometry.Geometry(**support.geometry()._asdict())
        return Daemon(self.daemon.socket, self.model_id.hex(), [(g, [geometry.Shard(0, H, 0)])], 4096, Service(self.log),
                      gpu=DEVICE if gpu else None)

    def text(self, n, salt):
        _, model = self.connected(self.daemon)
        return Text(tuple(range(1, n + 1)), salt, (model.info.table_digest,))

    def vectors(self, n):
        generator = torch.Generator().manual_seed(n)
        return torch.randn((L, 2, n, H, D), generator=generator).to(torch.bfloat16)

    def publish(self, text, vectors, pieces, gpu=True, queue_bytes=1 << 24, shift=0):
        """Steps of @pieces tokens. @shift: of the slots that vLLM writes to, from those that were announced."""
        publisher = Publisher(self.connector(gpu), queue_bytes, self.counters)
        recorder = Recorder(BLOCKS, 0, range(L), publisher.reserve, self.counters)
        recorder.start("a", text, 0)
        blocks = tuple(range(100, 100 + len(text.tokens) // BLOCK))
        place = DEVICE if gpu else torch.device("cpu")
        at = 0
        for n in pieces:
            others = torch.ones((NEIGHBOURS, H, D), dtype=torch.bfloat16)
            rows = [[torch.cat([others, vectors[layer, side, at:at + n], others]).to(place) for side in range(2)] for layer in range(L)]
            mapping = torch.cat([torch.arange(NEIGHBOURS), slots(blocks, BLOCK, at, n) + shift, 9000 + torch.arange(NEIGHBOURS)]).to(place)
            recorder.expect([Rows("a", at, n, (blocks,))])
            with self.step():
                for layer in range(L):
                    recorder.take(layer, *rows[layer], mapping)
                copies = recorder.end()
            for copy in copies:
                self.assertEqual(copy.memory.device.type, place.type)
            publisher.put(copies)
            at += n
        publisher.close()  # waits for some seconds only
        publisher._thread.join(support.TIMEOUT_S)
        return self.counters.take()

    def decoded(self, text, n):
        """What a client on the CPU reads."""
        _, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, salt=text.salt, keys="after", publish_all=True) as sequence:
            self.assertEqual(sequence.match(text.tokens + (7,)), n)
            return torch.stack([torch.stack([torch.from_numpy(sequence.read(layer, side, 0, n)) for side in "kv"])
                                for layer in range(L)])

    def check_both_ways(self, n_lines):
        """Prompts cut at other than 64 tokens: the same pages as from the CPU, and back into a paged cache on the GPU."""
        vectors, pieces = self.vectors(192), [100, 1, 91]
        there, here = self.text(192, b"gpu"), self.text(192, b"cpu")
        self.assertEqual(self.publish(there, vectors, pieces).get("published_tokens"), 192, self.log.lines)
        self.assertEqual(self.publish(here, vectors, pieces, gpu=False)["published_tokens"], 192)
        want = self.decoded(here, 192)
        self.assertTrue(torch.equal(self.decoded(there, 192), want))
        cache = torch.zeros((L, 2, 400, H, D), dtype=torch.bfloat16).to(DEVICE)

        def store(layer, key, value, where):
            self.assertEqual({x.device.type for x in (key, value, where)}, {"cuda"})
            cache[layer, 0, where], cache[layer, 1, where] = key, value

        loader = Loader(self.connector(True), store, BLOCKS, torch.bfloat16, DEVICE, self.counters)
        failed = loader.load(Load("a", Text(there.tokens + (7,), there.salt, there.tables), 64, 192, (tuple(range(1, 7)),)))
        loader.close()
        self.assertEqual(failed, set(), self.log.lines)
        got = cache.cpu().float()
        torch.testing.assert_close(got[:, :, 96:224], want[:, :, 64:], rtol=2**-7, atol=2**-12)
        self.assertEqual(int(got[:, :, :96].abs().sum() + got[:, :, 224:].abs().sum()), 0)
        self.assertEqual(len(self.log.lines), n_lines, self.log.lines)

    def test_there_and_back(self):
        self.check_both_ways(0)

    def test_codes_that_no_kernel_knows(self):
        other = os.path.join(self.folder, "trellis.table")
        support.write_table(other, seed=2, bpd=3.0, state_bits=6)
        self.daemon.activate(other)
        self.check_both_ways(2)  # one of the publisher's service, one of the loader's
        self.assertRegex(self.log.lines[0], "no GPU kernel knows the codes of table .* on the host")

    def test_other_slots_than_announced(self):
        text = self.text(128, b"")
        counts = self.publish(text, self.vectors(128), [128], shift=1)
        self.assertEqual(counts.get("published_tokens"), None)
        _, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
            self.assertEqual(sequence.match(text.tokens + (7,)), 0)

    def test_full_queue(self):
        text = self.text(128, b"")
        counts = self.publish(text, self.vectors(128), [128], queue_bytes=1 << 10)
        self.assertEqual((counts.get("published_tokens"), counts["prompts_queue_full"]), (None, 1))

    def test_pages_that_are_gone(self):
        text = self.text(128, b"")
        loader = Loader(self.connector(True), None, BLOCKS, torch.bfloat16, DEVICE, self.counters)
        self.assertEqual(loader.load(Load("a", Text(text.tokens + (7,), b"", text.tables), 0, 128, ((4, 5, 6, 7),))), {4, 5, 6, 7})
        loader.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
