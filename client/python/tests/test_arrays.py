"""Arrays of Python: what is read in place, and what is refused with a sentence and without a change."""
import array
import ctypes
import sys

import numpy

import support
from kvcobra import _arrays, _dlpack
from support import HEAD_DIM, N_HEADS, N_KV_HEADS, fill, vectors

try:
    import torch
except ImportError:
    torch = None


class FakeDLPack:
    """An object that has nothing but DLPack. Numbers are those of @x."""

    def __init__(self, x, code=2, bits=32, device=1):
        self.x = x
        self.tensor = _dlpack._Tensor(x.ctypes.data, device, 0, x.ndim, code, bits, 1, (ctypes.c_int64 * x.ndim)(*x.shape), None, 0)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.tensor.device_type, 0


class Arrays(support.Case):
    def setUp(self):
        super().setUp()
        self.client, self.model = self.embedded()
        self.sequence = support.kvcobra.Sequence(self.model)

    def refused(self, kind, words, k, v):
        with self.assertRaises(kind) as raised:
            self.sequence.append(0, k, v)
        for word in words:
            self.assertIn(word, str(raised.exception))
        for layer in range(support.N_LAYERS):
            with self.assertRaises(support.kvcobra.Error):  # the layer has no token to read
                self.sequence.read(layer, "k", 0, 1)

    def stored(self, k, v):
        """The keys and values that append(@k, @v) stores, decoded."""
        with support.kvcobra.Sequence(self.model) as sequence:
            sequence.append(0, k, v)
            n = _arrays.view(k, "k").shape[0]
            return sequence.read(0, "k", 0, n), sequence.read(0, "v", 0, n)

    def same(self, k, v):
        for got, want in zip(self.stored(k, v), self.stored(vectors(1, 10), vectors(2, 10))):
            numpy.testing.assert_array_equal(got, want)

    def test_wrong_shapes(self):
        k = vectors(1, 10)
        self.refused(ValueError, ["k has shape [10, 1, 64]", "expected [tokens, 2, 64]"], k[:, :1], k)
        self.refused(ValueError, ["v has shape [9, 2, 64]", "expected [10, 2, 64]"], k, k[:9])
        self.refused(ValueError, ["k has shape [1, 10, 2, 64]"], k[None], k[None])

    def test_wrong_types(self):
        k = vectors(1, 10)
        self.refused(TypeError, ["k has dtype float64"], k.astype(float), k)
        self.refused(TypeError, ["v has dtype float16", "expected float32"], k, k.astype(numpy.float16))
        self.refused(TypeError, ["k is a list"], k.tolist(), k)
        self.refused(TypeError, ["native byte order"], k.astype(">f4"), k)
        self.refused(TypeError, ["format 'i'"], array.array("i", range(10)), k)

    def test_last_dimension_must_be_contiguous(self):
        k = vectors(1, 10)
        self.refused(ValueError, ["stride 2 in its last dimension"], numpy.repeat(k, 2, axis=2)[:, :, ::2], k)
        self.refused(ValueError, ["expected positive ones"], k[::-1], k)
        self.refused(ValueError, ["expected positive ones"], numpy.broadcast_to(k[:1], k.shape), k)

    def test_strides_are_read_in_place(self):
        fused = numpy.zeros((10, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM), numpy.float32)  # rows of a qkv tensor
        fused[:, N_HEADS:N_HEADS + N_KV_HEADS], fused[:, N_HEADS + N_KV_HEADS:] = vectors(1, 10), vectors(2, 10)
        self.same(fused[:, N_HEADS:N_HEADS + N_KV_HEADS], fused[:, N_HEADS + N_KV_HEADS:])
        heads_first = [vectors(s, 10).transpose(1, 0, 2).copy() for s in (1, 2)]
        self.same(heads_first[0].transpose(1, 0, 2), heads_first[1].transpose(1, 0, 2))

    def test_buffers_and_dlpack(self):
        k, v = vectors(1, 10), vectors(2, 10)
        self.same(memoryview(k), memoryview(v))
        self.same(FakeDLPack(k), FakeDLPack(v))
        self.refused(ValueError, ["device 2"], FakeDLPack(k, device=2), v)
        self.refused(TypeError, ["type code 0"], FakeDLPack(k, code=0), v)

    def test_outputs(self):
        fill(self.sequence, 10)
        q = vectors(5, 10, N_HEADS)
        out = numpy.zeros_like(q)
        self.assertIs(self.sequence.attend(0, q, out), out)
        numpy.testing.assert_array_equal(out, self.sequence.attend(0, q))
        heads_first = numpy.zeros((N_HEADS, 10, HEAD_DIM), numpy.float32)
        self.sequence.attend(0, q, heads_first.transpose(1, 0, 2))
        numpy.testing.assert_array_equal(heads_first.transpose(1, 0, 2), out)
        frozen = numpy.zeros_like(q)
        frozen.flags.writeable = False
        one = numpy.zeros((1, N_HEADS, HEAD_DIM), numpy.float32)
        for kind, word, bad in [(ValueError, "read-only", frozen), (ValueError, "shape", out[:9]),
                                (TypeError, "float16", out.astype(numpy.float16)),
                                (ValueError, "read-only", numpy.broadcast_to(one, q.shape)),
                                (ValueError, "overlap", numpy.lib.stride_tricks.as_strided(out, q.shape, (0, 256, 4)))]:
            with self.subTest(word), self.assertRaisesRegex(kind, word):
                self.sequence.attend(0, q, bad)
        self.assertEqual(frozen.any(), False)

    def test_tokens(self):
        for tokens in ([1, 2, 3], (1, 2, 3), array.array("I", [1, 2, 3]), numpy.array([1, 2, 3]), range(1, 4)):
            self.assertEqual(list(_arrays.token_array(tokens)), [1, 2, 3])
        for kind, bad in [(ValueError, [-1]), (ValueError, [2**32]), (TypeError, ["a"]), (TypeError, [1.5]), (TypeError, 5),
                          (ValueError, numpy.zeros((2, 2), int))]:
            with self.subTest(str(bad)), self.assertRaises(kind):
                _arrays.token_array(bad)

    def test_digests(self):
        self.assertEqual(_arrays.digest("00" * 32, "x"), bytes(32))
        for kind, bad in [(ValueError, "00"), (ValueError, "zz"), (TypeError, 5), (ValueError, bytes(31))]:
            with self.subTest(str(bad)), self.assertRaises(kind):
                _arrays.digest(bad, "x")


class Torch(Arrays):
    """Tensors. Skipped without torch, which no Debian package of the tests brings."""

    def setUp(self):
        if torch is None:
            self.skipTest("torch is not installed")
        super().setUp()

    def test_tensors(self):
        k, v = (torch.from_numpy(vectors(s, 10)) for s in (1, 2))
        self.same(k, v)
        self.same(k.transpose(0, 1).contiguous().transpose(0, 1), v)
        for dtype in (torch.float16, torch.bfloat16):
            for got, want in zip(self.stored(k.to(dtype), v.to(dtype)), self.stored(k.to(dtype).float(), v.to(dtype).float())):
                numpy.testing.assert_array_equal(got, want)

    def test_refused_tensors(self):
        k = torch.from_numpy(vectors(1, 10))
        self.refused(ValueError, ["meta", "expected the CPU"], k.to("meta"), k)
        self.refused(TypeError, ["torch.float64"], k.double(), k)
        self.refused(TypeError, ["layout"], k.to_sparse(), k)
        fill(self.sequence, 10)
        with self.assertRaisesRegex(ValueError, "gradients"):
            q = torch.from_numpy(vectors(5, 10, N_HEADS))
            self.sequence.attend(0, q, torch.zeros_like(q, requires_grad=True))

    def test_bfloat16_attention(self):
        fill(self.sequence, 10)
        q = torch.from_numpy(vectors(5, 10, N_HEADS))
        exact, rounded = self.sequence.attend(0, q), self.sequence.attend(0, q.bfloat16())
        self.assertEqual(rounded.dtype, torch.bfloat16)
        self.assertLess((exact - rounded.float()).abs().max().item(), 0.05)


if __name__ == "__main__":
    if sys.argv[1:] == [] and torch is None:
        del Torch
    support.main()
