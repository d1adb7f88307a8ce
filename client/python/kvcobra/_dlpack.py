"""Reads the description of an array from its DLPack capsule. The capsule keeps the memory while it lives."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

CPU, CUDA = 1, 2
FLOAT, BFLOAT = 2, 4
ANY_GPU = -1  # as in _arrays.py


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def describe(x: Any, name: str, gpu: Optional[int]) -> Tuple[int, Tuple[int, ...], Tuple[int, ...], int, bool, Any]:
    """Address, shape, strides, number type (enum kvc_dtype), writable, owner. A capsule of this version of DLPack does not
    tell whether memory of the host may be written, so it counts as read-only. @gpu: as in _arrays.view()."""
    kind, number = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (CPU, 0)
    if gpu is None and kind != CPU:
        raise ValueError(f"{name} is on DLPack device {int(kind)}; expected the CPU ({CPU})")
    if gpu is not None and (kind != CUDA or gpu not in (ANY_GPU, number)):
        raise ValueError(f"{name} is on DLPack device {int(kind)}, number {int(number)}; expected the client's GPU ({CUDA}"
                         f"{'' if gpu == ANY_GPU else f', number {gpu}'})")
    capsule = x.__dlpack__(stream=-1) if gpu is not None else x.__dlpack__()  # -1: the caller orders the work of streams
    t = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    types = {(FLOAT, 32): 0, (FLOAT, 16): 1, (BFLOAT, 16): 2}
    dtype = types.get((t.code, t.bits))
    if t.device_type != kind or t.lanes != 1 or dtype is None:
        raise TypeError(f"{name} has DLPack type code {t.code} with {t.bits} bits on device {t.device_type}; expected float32, "
                        "float16 or bfloat16")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        strides = tuple(t.strides[i] for i in range(t.ndim))
    else:
        steps = [1] * t.ndim
        for i in range(t.ndim - 1, 0, -1):
            steps[i - 1] = steps[i] * shape[i]
        strides = tuple(steps)
    return (t.data or 0) + t.byte_offset, shape, strides, dtype, kind == CUDA, (capsule, x)
