"""torch with a CUDA device whose memory is that of the stand-in driver (tests/standin): tensors of this process that say that they are on the
GPU. Operations run on the CPU at once; memory that torch.empty() and Tensor.to() make there is memory of the driver, so that the library takes it.
With TEST_GPU set it is torch's own device, and nothing here changes torch."""
import contextlib
import os
import unittest.mock

import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda", 0)
REAL = bool(os.environ.get("TEST_GPU"))
WAITS = (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.nonzero, torch.Tensor.__bool__,
         torch.Tensor.__int__, torch.equal)


class _OnGpu(torch.Tensor):
    @property
    def device(self):
        return DEVICE


def _is_there(device):
    return device is not None and torch.device(device).type == "cuda"


class _Device(TorchFunctionMode):
    def __init__(self, driver):
        super().__init__()
        self._driver = driver
        self.in_step = False

    def put(self, x):
        memory = torch.from_numpy(self._driver.empty((max(1, x.numel() * x.element_size()),), "uint8"))
        there = memory[:x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        there.copy_(x)
        return there.as_subclass(_OnGpu)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if self.in_step and func in WAITS and any(isinstance(x, _OnGpu) for x in args):
            raise AssertionError(f"{func.__name__}() waits for the GPU in a step")
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor).clone()
        if func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], torch.device):
            if not _is_there(args[1]):
                return args[0].as_subclass(torch.Tensor)
            return args[0] if isinstance(args[0], _OnGpu) else self.put(args[0])
        if _is_there(kwargs.get("device")):
            del kwargs["device"]
            return self.put(func(*args, **kwargs))
        return func(*args, **kwargs)


class _Stream:
    cuda_stream = 0  # the default stream
    driver = None

    def __init__(self, device=None):
        del device

    def synchronize(self):
        self.driver.check(self.driver.lib.cuStreamSynchronize(None))


class _Event:
    def record(self, stream):
        del stream

    def synchronize(self):
        _Stream().synchronize()


class _Properties:
    def __init__(self, uuid):
        self.uuid = uuid


@contextlib.contextmanager
def device(driver, uuid):
    """Within it torch has DEVICE. @driver(): device memory as test_gpu.Driver has it; @uuid: of the driver's device. Yields a context
    manager that fails what waits for the GPU."""
    if REAL:
        yield _real_step
        return
    mode, _Stream.driver = _Device(driver()), driver()
    changes = {"Event": _Event, "Stream": _Stream, "stream": lambda stream: contextlib.nullcontext(), "set_device": lambda device: None,
               "current_stream": _Stream, "current_device": lambda: 0, "get_device_properties": lambda number: _Properties(uuid)}

    @contextlib.contextmanager
    def step():
        mode.in_step = True
        try:
            yield
        finally:
            mode.in_step = False

    with mode, unittest.mock.patch.multiple(torch.cuda, **changes):
        yield step


@contextlib.contextmanager
def _real_step():
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
