"""Attention on codes as vLLM's backend calls it, against a real kvcobrad. Needs torch, and no vLLM."""
import sys

import support

try:
    import torch
except ImportError:
    print("skipped: the Python module torch is missing")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra.vllm import geometry
from kvcobra.vllm.codes import Codes, bytes_per_state
from kvcobra.vllm.counters import Counters
from kvcobra.vllm.daemon import Daemon, Service
from kvcobra.vllm.metadata import Load, Row, Step, Text
from vllm_standin import FakeLog

L, H, D, QUERIES = support.N_LAYERS, support.N_KV_HEADS, support.HEAD_DIM, support.N_HEADS


def tensors(seed, n, heads):
    return torch.randn((L, n, heads, D), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


class Request:
    """A request with fixed vectors, and its sequence of the library as reference."""

    def __init__(self, name, block, n, model):
        self.name, self.block, self.n = name, block, n
        self.tokens = tuple(1000 * block + i for i in range(n))
        self.q, self.k, self.v = tensors(block, n, QUERIES), tensors(block + 100, n, H), tensors(block + 200, n, H)
        self.reference = kvcobra.Sequence(model, keys="after")
        self.sent = 0

    def row(self, salt, table, upto):
        at, self.sent = self.sent, upto
        return Row(self.name, self.block, at, self.tokens[at:upto], salt, table)


class Attention(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M")
        self.daemon.__enter__()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)
        self.counters = Counters()
        self.log = FakeLog()
        _, self.model = self.embedded()
        _, connected = self.connected(self.daemon)
        self.digest = connected.info.table_digest
        self.codes = self.new_codes()

    def new_codes(self, repeatable=False):
        daemon = Daemon(self.daemon.socket, self.model_id.hex(),
                        [(geometry.Geometry(**support.geometry()._asdict()), [geometry.Shard(0, H, 0)])], 4096, Service(self.log), 2)
        codes = Codes(daemon, repeatable, self.counters)
        self.addCleanup(codes.close)
        return codes

    def step(self, parts, salt=b"", loads=(), codes=None):
        """A step. @parts: (request, first, end). Returns the outputs and the failed blocks; compares with the references."""
        codes = codes or self.codes
        codes.bind(Step(batch=[r.row(salt, self.digest, end) for r, _, end in parts]))
        failed = set()
        for load in loads:
            failed |= codes.load(load, 64)
        starts = [0]
        for _, first, end in parts:
            starts.append(starts[-1] + end - first)
        plan = codes.parts([r.block for r, _, _ in parts], starts, [end for _, _, end in parts])
        outputs = []
        for layer in range(L):
            q, k, v = (torch.cat([getattr(r, side)[layer, first:end] for r, first, end in parts]) for side in "qkv")
            out = torch.zeros_like(q)
            codes.attend(layer, plan, q, k, v, out)
            outputs.append(out)
        codes.end_step()
        return torch.stack(outputs), failed

    def expected(self, request, first, end):
        outputs = []
        for layer in range(L):
            request.reference.append(layer, request.k[layer, first:end], request.v[layer, first:end])
            outputs.append(request.reference.attend(layer, request.q[layer, first:end]))
        return torch.stack(outputs)

    def assert_close(self, got, expected):
        # both are rounded to bfloat16; threads merge partial sums in another order
        self.assertLess((got.float() - expected.float()).abs().max(), 2**-7 * expected.float().abs().max())

    def test_batches_of_mixed_lengths(self):
        a, b = Request("a", 1, 300, self.model), Request("b", 2, 500, self.model)
        out, _ = self.step([(a, 0, 200)])
        self.assert_close(out, self.expected(a, 0, 200))
        out, _ = self.step([(b, 0, 400), (a, 200, 201)])
        self.assert_close(out, torch.cat([self.expected(b, 0, 400), self.expected(a, 200, 201)], dim=1))
        out, _ = self.step([(a, 201, 202), (b, 400, 401)])
        self.assert_close(out, torch.cat([self.expected(a, 201, 202), self.expected(b, 400, 401)], dim=1))
        self.assertEqual(self.counters.take()["published_tokens"], 128 + 320)

    def test_hit_of_another_process(self):
        a = Request("a", 1, 300, self.model)
        self.step([(a, 0, 300)])
        published = self.counters.take()["published_tokens"]
        self.assertEqual(published, 192)
        other = self.new_codes()
        again = Request("z", 7, 300, self.model)
        again.tokens, again.q, again.k, again.v = a.tokens, a.q, a.k, a.v
        load = Load("z", Text(a.tokens, b"", (self.digest,)), 0, 192, ((7, 8, 9),))
        out, failed = self.step([(again, 192, 300)], loads=[load], codes=other)
        self.assertEqual(failed, set())
        _, model = self.connected(self.daemon)
        again.reference = kvcobra.Sequence(model, keys="after")
        self.assertEqual(again.reference.match(a.tokens), 192)
        self.assert_close(out, self.expected(again, 192, 300))
        self.assertFalse(torch.equal(out, self.expected(a, 0, 300)[:, 192:]), "the beginning is read from codes")

    def test_repeatable(self):
        a = Request("a", 1, 300, self.model)
        cold, _ = self.step([(a, 0, 300)], codes=self.new_codes(repeatable=True))
        again = Request("z", 7, 300, self.model)
        again.tokens, again.q, again.k, again.v = a.tokens, a.q, a.k, a.v
        load = Load("z", Text(a.tokens, b"", (self.digest,)), 0, 192, ((7, 8, 9),))
        hit, failed = self.step([(again, 192, 300)], loads=[load], codes=self.new_codes(repeatable=True))
        self.assertEqual(failed, set())
        self.assert_close(hit, cold[:, 192:])

    def test_load_that_fails_is_computed_again(self):
        a = Request("a", 1, 300, self.model)
        load = Load("a", Text(a.tokens, b"", (self.digest,)), 0, 192, ((1, 8, 9),))
        out, failed = self.step([(a, 192, 300)], loads=[load])
        self.assertEqual(failed, {1, 8, 9})
        self.assertEqual(int(out.abs().sum()), 0)
        out, _ = self.step([(a, 299, 300)])  # a step that vLLM scheduled before it saw the failure
        self.assertEqual(int(out.abs().sum()), 0)
        out, _ = self.step([(a, 0, 300)])
        self.assert_close(out, self.expected(a, 0, 300))
        self.assertEqual(self.counters.take(), {"load_failures": 1, "published_tokens": 192})
        _, model = self.connected(self.daemon)
        self.assertEqual(kvcobra.Sequence(model).match(a.tokens), 192, "published under the request's tokens")

    def test_weights_that_may_have_changed(self):
        a, b = Request("a", 1, 300, self.model), Request("b", 2, 300, self.model)
        self.step([(b, 0, 300)])
        self.assertEqual(self.counters.take()["published_tokens"], 192)
        self.step([(a, 0, 100)])
        self.codes.stop()
        out, _ = self.step([(a, 100, 300)])
        self.assert_close(out, self.expected(a, 0, 300)[:, 100:])
        again = Request("z", 7, 300, self.model)
        again.tokens = b.tokens
        _, failed = self.step([(again, 192, 300)], loads=[Load("z", Text(b.tokens, b"", (self.digest,)), 0, 192, ((7, 8, 9),))])
        self.assertEqual(failed, {7, 8, 9})
        again.sent = 0
        self.step([(again, 0, 300)])
        self.assertEqual(self.counters.take(), {"load_failures": 1}, "neither a prompt before nor that behind is published")

    def test_tokens_with_a_gap_are_an_error(self):
        a = Request("a", 1, 300, self.model)
        a.sent = 5
        with self.assertRaisesRegex(RuntimeError, "from 5 on, after 0"):
            self.step([(a, 0, 100)])

    def test_preempted_request(self):
        a = Request("a", 1, 300, self.model)
        self.step([(a, 0, 200)])
        a.sent = 0
        out, _ = self.step([(a, 0, 300)])
        self.assert_close(out, self.expected(a, 0, 300))

    def test_text_without_salt_is_not_published(self):
        a = Request("a", 1, 300, self.model)
        out, _ = self.step([(a, 0, 300)], salt=None)
        self.assert_close(out, self.expected(a, 0, 300))
        self.assertEqual(self.counters.take(), {})

    def test_full_arena(self):
        small = support.Daemon("--pool-bytes=512M", "--arena-bytes=1M")
        with small:
            small.activate(self.table)
            self.daemon, first = small, self.daemon
            codes = self.new_codes()
            self.daemon = first
            a = Request("a", 1, 3500, self.model)
            for at in range(0, 3500, 500):
                out, _ = self.step([(a, at, at + 500)], salt=None, codes=codes)
                self.assert_close(out, self.expected(a, at, at + 500))
            codes.close()

    def test_lengths_that_differ_are_an_error(self):
        a = Request("a", 1, 300, self.model)
        self.step([(a, 0, 100)])
        with self.assertRaisesRegex(RuntimeError, "150 tokens of request a, which has a sequence of 100"):
            self.step([(a, 150, 300)])
        with self.assertRaisesRegex(RuntimeError, "request b, which has no sequence"):
            self.step([(Request("b", 2, 300, self.model), 10, 20)])

    def test_step_without_requests_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "outside of a step"):
            self.codes.parts([1], [0, 1], [1])
        self.codes.bind(Step())
        with self.assertRaisesRegex(RuntimeError, "block 1 is of no request"):
            self.codes.parts([1], [0, 1], [1])

    def test_daemon_that_ends(self):
        a = Request("a", 1, 300, self.model)
        self.step([(a, 0, 200)])
        self.daemon.kill()
        out, _ = self.step([(a, 200, 300)])
        self.expected(a, 0, 200)
        self.assert_close(out, self.expected(a, 200, 300))
        b = Request("b", 2, 100, self.model)
        out, _ = self.step([(b, 0, 100)])
        self.assert_close(out, self.expected(b, 0, 100))
        self.assertEqual(len(self.log.lines), 1, self.log.lines)

    def test_bytes_per_state(self):
        n = bytes_per_state(self.model)
        self.assertEqual(n % 4, 0)
        self.assertTrue(0 <= n * 64 * L * H - self.model.info.page_bytes < 4 * 64 * L * H)


if __name__ == "__main__":
    support.main()
