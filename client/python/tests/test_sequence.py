"""Sequences without a daemon: what is stored, attended to, read, cut and copied."""
import numpy

import kvcobra
import support
from support import HEAD_DIM, N_HEADS, N_KV_HEADS, N_LAYERS, fill, rotate, vectors


def attention(q, k, v):
    """Causal attention in binary64 of the newest queries: [n_q, heads, d], keys after RoPE."""
    n_q, n = q.shape[0], k.shape[0]
    out = numpy.zeros(q.shape)
    for head in range(N_HEADS):
        kv = head // (N_HEADS // N_KV_HEADS)
        scores = q[:, head].astype(float) @ k[:, kv].T.astype(float) / HEAD_DIM**0.5
        scores[numpy.arange(n)[None] > numpy.arange(n - n_q, n)[:, None]] = -numpy.inf
        weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, kv]
    return out


class Sequence(support.Case):
    def setUp(self):
        super().setUp()
        self.client, self.model = self.embedded()

    def test_attention_of_exact_tokens(self):
        k, v, q = vectors(1, 100), vectors(2, 100), vectors(3, 100, N_HEADS)
        with kvcobra.Sequence(self.model) as sequence:
            sequence.append(0, k, v)
            want = attention(rotate(q), rotate(k), v)
            self.assertLess(abs(sequence.attend(0, q) - want).max(), 3e-3)  # a tail holds binary16

    def test_keys_after_rope(self):
        k, v, q = vectors(1, 100), vectors(2, 100), vectors(3, 100, N_HEADS)
        with kvcobra.Sequence(self.model, keys="after") as sequence:
            sequence.append(0, k, v)
            self.assertLess(abs(sequence.attend(0, q) - attention(q, k, v)).max(), 2e-3)
            self.assertLess(abs(sequence.read(0, "k", 0, 100) - k).max(), 5e-3)

    def test_interleaved_pairs(self):
        half = HEAD_DIM // 2
        order = numpy.arange(HEAD_DIM).reshape(2, half).T.reshape(-1)  # dimension 2 i is i, 2 i + 1 is i + half
        k, v, q = vectors(1, 100), vectors(2, 100), vectors(3, 100, N_HEADS)
        with kvcobra.Sequence(self.model) as split, kvcobra.Sequence(self.model, pairs="interleaved") as sequence:
            split.append(0, k, v)
            sequence.append(0, numpy.ascontiguousarray(k[..., order]), v)
            numpy.testing.assert_allclose(sequence.attend(0, numpy.ascontiguousarray(q[..., order])), split.attend(0, q),
                                          atol=1e-5)

    def test_fit(self):
        self.model.report(1000000)
        self.assertEqual(self.model.fit.tokens, 0)
        with kvcobra.Sequence(self.model) as sequence:
            fill(sequence, 300)
            fill(sequence, 1, 300)  # packs the chunks before
        fit = self.model.fit
        self.assertEqual(fit.tokens % 64, 0)
        self.assertGreater(fit.tokens, 0)
        self.assertTrue(all(0 < error < 2 for error in fit.error), fit)
        self.assertTrue(all(coded > saturated for coded, saturated in zip(fit.coded, fit.saturated)), fit)

    def test_window(self):
        k, v, q = vectors(1, 100), vectors(2, 100), vectors(3, 1, N_HEADS)
        with kvcobra.Sequence(self.model, keys="after") as sequence:
            sequence.append(0, k, v)
            self.assertLess(abs(sequence.attend(0, q, window=10) - attention(q, k[90:], v[90:])).max(), 2e-3)

    def test_batches(self):
        sequences = [kvcobra.Sequence(self.model) for _ in range(3)]
        ks, vs = [vectors(i, 10 + i) for i in range(3)], [vectors(9 + i, 10 + i) for i in range(3)]
        qs = [vectors(20 + i, 1 + i, N_HEADS) for i in range(3)]
        kvcobra.append_batch(0, sequences, ks, vs)
        outs = kvcobra.attend_batch(0, sequences, qs)
        for i, sequence in enumerate(sequences):
            numpy.testing.assert_array_equal(sequence.attend(0, qs[i]), outs[i])
        with self.assertRaisesRegex(ValueError, "no sequence"):
            kvcobra.append_batch(0, [], [], [])
        with self.assertRaisesRegex(ValueError, "expected as many"):
            kvcobra.append_batch(0, sequences, ks[:2], vs)
        with self.assertRaisesRegex(ValueError, "one client"):
            kvcobra.append_batch(0, [sequences[0], kvcobra.Sequence(self.embedded()[1])], ks[:2], vs[:2])
        with self.assertRaisesRegex(kvcobra.Error, "only once"):
            kvcobra.append_batch(0, [sequences[0]] * 2, ks[:2], vs[:2])
        self.assertEqual(sequences[0].read(0, "k", 0, 10).shape, (10, N_KV_HEADS, HEAD_DIM))

    def test_life(self):
        sequence = kvcobra.Sequence(self.model)
        self.assertTrue(sequence)
        fill(sequence, 195)
        fill(sequence, 5, 195)  # packs two chunks that the first append made full
        fork = sequence.fork()
        self.assertEqual((len(fork), fork.model), (200, self.model))
        self.assertEqual(fork.truncate(100), 64)  # position 100 is in a page
        self.assertEqual((fork.length, sequence.length), (64, 200))
        self.assertEqual(sequence.commit(range(200)), 0)  # embedded: nothing is published
        usage = sequence.usage
        self.assertEqual(usage.tokens, 200)
        self.assertEqual(usage.numbers, 200 * N_LAYERS * N_KV_HEADS * HEAD_DIM * 2)
        self.assertGreater(usage.true_bpd, 3)
        self.assertEqual(len(usage.coded), 2)

    def test_read(self):
        sequence = kvcobra.Sequence(self.model)
        fill(sequence, 195)
        fill(sequence, 5, 195)
        out = numpy.zeros((10, N_KV_HEADS, HEAD_DIM), numpy.float32)
        self.assertIs(sequence.read(1, "v", 150, 10, out), out)
        self.assertLess(abs(out - vectors(12, 200)[150:160]).max(), 5e-3)  # the tail
        self.assertEqual(sequence.read(1, "v", 150, 0).shape, (0, N_KV_HEADS, HEAD_DIM))
        codes = sequence.read(1, "v", 4, 60) - vectors(12, 200)[4:64]
        self.assertLess((codes**2).mean(), 0.5)  # vectors of another position: 2
        with self.assertRaises(ValueError):
            sequence.read(1, "w", 0, 1)
        with self.assertRaises(TypeError):
            sequence.read(1, "v", 0, 10, out.astype(numpy.float16))
        with self.assertRaises(kvcobra.Error):
            sequence.read(1, "v", 195, 10, out)


class Blocks(support.Case):
    """read_blocks(): every layout has the numbers of read()."""

    N, TOKENS = 150, 32

    def setUp(self):
        super().setUp()
        self.client, self.model = self.embedded()
        self.sequence = kvcobra.Sequence(self.model, keys="after")
        fill(self.sequence, self.N)

    def want(self, layer, side, first=0, n=N):
        return self.sequence.read(layer, "kv"[side], first, n)

    def test_one_block(self):
        caches = [[numpy.zeros((self.N, N_KV_HEADS, HEAD_DIM), numpy.float32) for _ in range(N_LAYERS)] for _ in "kv"]
        self.sequence.read_blocks(0, self.N, *caches)
        for side, arrays in enumerate(caches):
            for layer, x in enumerate(arrays):
                numpy.testing.assert_array_equal(x, self.want(layer, side))

    def test_blocks_by_number(self):
        blocks = [7, 2, 5, 0, 3]
        keys = [numpy.zeros((8, self.TOKENS, N_KV_HEADS, HEAD_DIM), numpy.float32) for _ in range(N_LAYERS)]
        self.sequence.read_blocks(10, 100, keys, None, blocks)
        want = self.want(1, 0, 10, 100)
        for p in range(10, 110):
            numpy.testing.assert_array_equal(keys[1][blocks[p // self.TOKENS], p % self.TOKENS], want[p - 10])
        self.assertFalse(keys[1][[1, 4, 6]].any() or keys[1][7][:10].any())

    def test_transposed_keys_and_binary16(self):
        """[blocks, heads, dim, tokens] keys beside [blocks, heads, tokens, dim] values."""
        k = [numpy.zeros((5, N_KV_HEADS, HEAD_DIM, self.TOKENS), numpy.float16) for _ in range(N_LAYERS)]
        v = [numpy.zeros((5, N_KV_HEADS, self.TOKENS, HEAD_DIM), numpy.float16) for _ in range(N_LAYERS)]
        self.sequence.read_blocks(0, self.N, [x.transpose(0, 3, 1, 2) for x in k], [x.transpose(0, 2, 1, 3) for x in v])
        for side, x in ((0, k[2].transpose(0, 3, 1, 2)), (1, v[2].transpose(0, 2, 1, 3))):
            flat = x.reshape(-1, N_KV_HEADS, HEAD_DIM)[:self.N]
            numpy.testing.assert_array_equal(flat, self.want(2, side).astype(numpy.float16))

    def test_a_layer_that_is_not_read(self):
        keys = [None, numpy.zeros((self.N, N_KV_HEADS, HEAD_DIM), numpy.float32), None]
        self.sequence.read_blocks(0, self.N, keys, None)
        numpy.testing.assert_array_equal(keys[1], self.want(1, 0))

    def test_refusals(self):
        def cache(*shape, dtype=numpy.float32):
            return [numpy.zeros(shape, dtype) for _ in range(N_LAYERS)]

        good = cache(5, self.TOKENS, N_KV_HEADS, HEAD_DIM)
        frozen = cache(5, self.TOKENS, N_KV_HEADS, HEAD_DIM)
        frozen[1].flags.writeable = False
        other = good[:2] + cache(5, self.TOKENS, N_KV_HEADS, HEAD_DIM, dtype=numpy.float16)[2:]
        for word, arguments in [("no array", (None, None)), ("3, one per layer", (good[:2], None)),
                                ("expected", (cache(5, self.TOKENS, 1, HEAD_DIM), None)), ("read-only", (frozen, None)),
                                ("those of the first layer", (other, None)),
                                ("room for 100 tokens", (cache(100, N_KV_HEADS, HEAD_DIM), None)),
                                ("4", (cache(4, self.TOKENS, N_KV_HEADS, HEAD_DIM), None)),
                                ("4 entries", (good, None, [0, 1, 2, 3])), ("expected 0..4", (good, None, [0, 1, 2, 3, 5])),
                                ("expected 0..4", (good, None, [0, 1, -1, 3, 4]))]:
            with self.subTest(word), self.assertRaisesRegex(ValueError, word):
                self.sequence.read_blocks(0, self.N, *arguments)
        self.assertFalse(any(x.any() for x in good + other + frozen))


if __name__ == "__main__":
    support.main()
