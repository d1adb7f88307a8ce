"""Clients on a GPU: arrays in its memory, pages in host memory. The driver is the stand-in of tests/standin, whose device memory this process
can read, so that arrays of numpy lie there; to the package they are objects with DLPack on a CUDA device."""
import ctypes
import errno
import os
import unittest

import numpy
import support
from support import HEAD_DIM, N_KV_HEADS, N_LAYERS

import kvcobra
from kvcobra._gpus import host_codec

# the stand-in's, or without the variable the system's. The library opens libcuda.so.1, which is then the one that a Driver loaded before.
LIBCUDA = os.path.join(os.environ.get("KVC_STANDIN_CUDA", ""), "libcuda.so.1")
UUID = "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0"  # of the stand-in's first device
CUDA = 2


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class Driver:
    """Device memory of the stand-in, by the calls of the driver."""

    def __init__(self):
        self.lib = ctypes.CDLL(LIBCUDA)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.check(self.lib.cuInit(0))
        self.check(self.lib.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.lib.cuCtxPushCurrent_v2(context))

    def check(self, result):
        if result != 0:
            raise RuntimeError(f"CUDA error {result}")

    def empty(self, shape, dtype):
        """An array of numpy in device memory, which stays until the process ends."""
        n_bytes, at = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize, ctypes.c_uint64()
        self.check(self.lib.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(n_bytes)))
        return numpy.frombuffer((ctypes.c_char * n_bytes).from_address(at.value), dtype).reshape(shape)


class OnGpu:
    """An array of device memory, with DLPack as torch and CuPy have it."""

    def __init__(self, array, number=0):
        self.array, self.number = array, number

    def __dlpack_device__(self):
        return CUDA, self.number

    def __dlpack__(self, stream=None):
        capsule = self.array.__dlpack__()
        tensor = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = CUDA, self.number
        return capsule


class Gpu(support.Case):
    def setUp(self):
        super().setUp()
        self.driver = Driver()
        self.daemon = support.Daemon()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)

    def on_gpu(self):
        client = kvcobra.Client(self.daemon.socket, gpu=UUID)
        self.addCleanup(client.close)
        return client, kvcobra.Model(client, self.model_id, support.geometry())

    def vectors(self, seed, n):
        array = self.driver.empty((n, N_KV_HEADS, HEAD_DIM), numpy.float16)
        array[:] = support.vectors(seed, n)
        return array

    def test_pages_are_those_of_the_cpu(self):
        self.assertIsNone(host_codec(self.on_gpu()[1]))
        self.check_pages()

    def test_codes_that_no_kernel_knows(self):
        other = os.path.join(self.folder, "trellis.table")
        support.write_table(other, seed=2, bpd=3.0, state_bits=6)
        self.daemon.activate(other)
        self.assertRegex(host_codec(self.on_gpu()[1]), "no GPU kernel knows the codes of table [0-9a-f]{12}: .* on the host")
        self.check_pages()
        self.check_blocks()

    def check_pages(self):
        n, tokens = 200, list(range(200))
        arrays = {(layer, side): self.vectors(10 * layer + side, n) for layer in range(N_LAYERS) for side in (0, 1)}
        client, model = self.on_gpu()
        with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
            for first, end in ((0, 70), (70, 71), (71, n)):
                for layer in range(N_LAYERS):
                    sequence.append(layer, *(OnGpu(arrays[layer, side][first:end]) for side in (0, 1)))
            self.assertEqual(sequence.commit(tokens), 192)
        other, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, keys="after", publish_all=True) as found, \
                kvcobra.Sequence(model, salt=b"own", keys="after", publish_all=True) as own:
            self.assertEqual(found.match(tokens), 192)
            for layer in range(N_LAYERS):
                own.append(layer, arrays[layer, 0], arrays[layer, 1])
            own.commit(tokens)
            for layer in range(N_LAYERS):
                for side in "kv":
                    numpy.testing.assert_array_equal(found.read(layer, side, 0, 192), own.read(layer, side, 0, 192))

    def test_blocks_on_the_gpu(self):
        self.check_blocks()

    def check_blocks(self):
        tokens = list(range(150))
        _, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
            support.fill(sequence, 150)
            sequence.commit(tokens)
            want = [[sequence.read(layer, side, 0, 128) for layer in range(N_LAYERS)] for side in "kv"]
        client, model = self.on_gpu()
        caches = [[self.driver.empty((12, 16, N_KV_HEADS, HEAD_DIM), numpy.float32) for _ in range(N_LAYERS)] for _ in "kv"]
        blocks = [11, 3, 7, 0, 1, 2, 5, 9]
        with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
            self.assertEqual(sequence.match(tokens), 128)
            sequence.read_blocks(0, 128, *([OnGpu(x) for x in side] for side in caches), blocks=blocks)
            client.synchronize()
        for side, arrays in zip(want, caches):
            for a, b in zip(side, arrays):
                numpy.testing.assert_array_equal(a, b[blocks].reshape(a.shape))

    def test_arrays_elsewhere_are_refused(self):
        client, model = self.on_gpu()
        self.assertEqual(client.gpu, -1)
        there, here = self.vectors(1, 8), support.vectors(1, 8).astype(numpy.float16)
        with kvcobra.Sequence(model) as sequence:
            with self.assertRaisesRegex(ValueError, "in host memory; expected an array on the client's GPU"):
                sequence.append(0, here, here)
            with self.assertRaises(kvcobra.Error) as raised:
                sequence.append(0, OnGpu(here), OnGpu(here))
            self.assertEqual(raised.exception.errno, errno.EINVAL)
            with self.assertRaises(kvcobra.Error) as raised:
                queries = [OnGpu(self.driver.empty((1, support.N_HEADS, HEAD_DIM), numpy.float16)) for _ in range(2)]
                sequence.append(0, OnGpu(there), OnGpu(there))
                sequence.attend(0, *queries)
            self.assertEqual(raised.exception.errno, errno.EOPNOTSUPP)
        _, model = self.connected(self.daemon)
        with kvcobra.Sequence(model) as sequence, self.assertRaisesRegex(ValueError, "DLPack device 2"):
            sequence.append(0, OnGpu(there), OnGpu(there))

    def test_arguments(self):
        with self.assertRaises(kvcobra.Error) as raised:
            kvcobra.Client(False, gpu="GPU-00000000-0000-0000-0000-000000000000")
        self.assertEqual(raised.exception.errno, errno.ENODEV)
        for arguments in (dict(stream=1), dict(ring_bytes=1 << 20)):
            with self.assertRaisesRegex(TypeError, "for a client with a gpu"):
                kvcobra.Client(False, **arguments)


if __name__ == "__main__":
    unittest.main(verbosity=2)
