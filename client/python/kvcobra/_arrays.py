"""Arrays of the caller as address, shape and strides, without a copy and without importing numpy or torch.

Accepted are torch tensors, numpy arrays (bfloat16 by ml_dtypes), and everything else with DLPack or the buffer protocol.
Strides pass through. What the library cannot read in place is refused: a copy would hide its cost. A client on a GPU takes
arrays in the memory of that GPU, any other client arrays in host memory.
"""
from __future__ import annotations

import array
import sys
from typing import Any, NamedTuple, Optional, Sequence as Items, Tuple

from . import _dlpack
from ._library import ffi

# names of number types as messages print them; the values of enum kvc_dtype
F32, F16, BF16 = 0, 1, 2
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
BYTES = {F32: 4, F16: 2, BF16: 2}
FORMATS = {"f": F32, "=f": F32, "<f": F32, "@f": F32, "e": F16, "=e": F16, "<e": F16, "@e": F16}
Tokens = Any  # a sequence of ints, or a one-dimensional array of integers


ANY_GPU = -1  # the client's GPU was given by its UUID: the library checks that the memory is on it


class View(NamedTuple):
    """@strides are distances in numbers. @owner keeps the memory."""

    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: int
    writable: bool
    owner: Any


def _place(gpu: Optional[int]) -> str:
    if gpu is None:
        return "the CPU"
    return "the client's GPU" if gpu == ANY_GPU else f"the client's GPU, cuda:{gpu}"


def _torch_view(x: Any, name: str, gpu: Optional[int]) -> View:
    torch = sys.modules["torch"]
    kinds = {torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16}
    if gpu is None and x.device.type != "cpu":
        raise ValueError(f"{name} is a tensor on {x.device}; expected the CPU: use {name}.cpu(), or a Client with this GPU")
    if gpu is not None and (x.device.type != "cuda" or gpu not in (ANY_GPU, x.device.index)):
        raise ValueError(f"{name} is a tensor on {x.device}; expected {_place(gpu)}")
    if x.layout != torch.strided or x.is_neg() or x.is_conj():
        raise TypeError(f"{name} is a tensor of layout {x.layout}, or lazily negated; expected a plain strided tensor")
    if x.dtype not in kinds:
        raise TypeError(f"{name} has dtype {x.dtype}; expected float32, float16 or bfloat16")
    writable = not (x.requires_grad and torch.is_grad_enabled())
    return View(x.data_ptr(), tuple(x.shape), tuple(x.stride()), kinds[x.dtype], writable, x)


def _numpy_view(x: Any, name: str) -> View:
    kinds = {"float32": F32, "float16": F16, "bfloat16": BF16}
    kind = kinds.get(x.dtype.name)
    if kind is None or not x.dtype.isnative:
        raise TypeError(f"{name} has dtype {x.dtype}; expected float32, float16 or bfloat16 in native byte order")
    if any(s % BYTES[kind] for s in x.strides) or x.ctypes.data % BYTES[kind]:
        raise ValueError(f"{name} is not aligned to its numbers: use numpy.ascontiguousarray()")
    return View(x.ctypes.data, x.shape, tuple(s // BYTES[kind] for s in x.strides), kind, x.flags.writeable, x)


def _buffer_view(memory: memoryview, name: str) -> View:
    kind = FORMATS.get(memory.format)
    if kind is None:
        raise TypeError(f"{name} is a buffer of format {memory.format!r}; expected float32 ('f') or float16 ('e')")
    if not memory.c_contiguous or memory.shape is None:
        raise ValueError(f"{name} is a buffer with gaps; expected a contiguous one")
    strides = [1] * memory.ndim
    for i in range(memory.ndim - 1, 0, -1):
        strides[i - 1] = strides[i] * memory.shape[i]
    c_memory = ffi.from_buffer(memory)
    return View(int(ffi.cast("uintptr_t", c_memory)), tuple(memory.shape), tuple(strides), kind, not memory.readonly, c_memory)


def view(x: Any, name: str, gpu: Optional[int] = None) -> View:
    """@x as memory. @name stands for it in messages. @gpu: the number of the client's GPU, or ANY_GPU; None: host memory."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_view(x, name, gpu)
    if hasattr(x, "__dlpack__") and not (numpy is not None and isinstance(x, numpy.ndarray)):
        return View(*_dlpack.describe(x, name, gpu))
    if gpu is not None:
        raise ValueError(f"{name} is a {type(x).__name__} in host memory; expected an array on {_place(gpu)}")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return _numpy_view(x, name)
    try:
        memory = memoryview(x)
    except (TypeError, BufferError):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, a numpy array, or an object with the buffer "
                        "protocol or DLPack") from None
    return _buffer_view(memory, name)


def check(v: View, name: str, shape: Items[Optional[int]], axes: str, dtype: Optional[int] = None,
          writable: bool = False) -> View:
    """Raises unless @v has @shape (None: any size), @dtype if given, and a contiguous last dimension."""
    if len(v.shape) != len(shape) or any(want is not None and got != want for got, want in zip(v.shape, shape)):
        expected = ", ".join(axis if want is None else str(want) for axis, want in zip(axes.split(), shape))
        raise ValueError(f"{name} has shape {list(v.shape)}; expected [{expected}] ({axes})")
    if dtype is not None and v.dtype != dtype:
        raise TypeError(f"{name} has dtype {NAMES[v.dtype]}; expected {NAMES[dtype]}")
    if 0 not in v.shape and v.shape[-1] > 1 and v.strides[-1] != 1:
        raise ValueError(f"{name} has stride {v.strides[-1]} in its last dimension; expected 1: make it contiguous")
    if writable:
        check_writable(v, name)
    return v


def check_writable(v: View, name: str) -> None:
    """Raises if the memory is read-only, or if two numbers of the array share memory."""
    if not v.writable:
        raise ValueError(f"{name} is read-only, or a tensor that requires gradients; expected memory that can be written")
    if 0 in v.shape:
        return
    extent = 1
    for stride, size in sorted((s, n) for s, n in zip(v.strides, v.shape) if n > 1):
        if stride < extent:
            raise ValueError(f"{name} has strides {list(v.strides)} for shape {list(v.shape)}: its numbers overlap")
        extent = stride * size


def token_head_strides(v: View, name: str) -> Tuple[int, int]:
    """Strides of tokens and heads of a [tokens, heads, dim] array for the library, where 0 means without gaps."""
    n_tokens, n_heads, dim = v.shape
    token, head = v.strides[0], v.strides[1]
    if n_tokens == 0 or ((n_tokens == 1 or token == n_heads * dim) and (n_heads == 1 or head == dim)):
        return 0, 0
    token = token if n_tokens > 1 else n_heads * dim
    head = head if n_heads > 1 else dim
    if token <= 0 or head <= 0:
        raise ValueError(f"{name} has strides {list(v.strides)}; expected positive ones: make it contiguous")
    return token, head


def pointer(v: View) -> Any:
    return ffi.cast("void *", v.address)


def token_array(tokens: Tokens, name: str = "tokens") -> Any:
    """Token ids as uint32_t[]."""
    if isinstance(tokens, array.array) and tokens.typecode == "I" and tokens.itemsize == 4:
        return ffi.from_buffer("uint32_t[]", tokens)
    if hasattr(tokens, "tolist"):
        if getattr(tokens, "ndim", 1) != 1:
            raise ValueError(f"{name} has {tokens.ndim} dimensions; expected one: the ids of one sequence")
        tokens = tokens.tolist()
    try:
        return ffi.new("uint32_t[]", list(tokens))
    except OverflowError:
        raise ValueError(f"{name} has an id outside 0..{2**32 - 1}") from None
    except TypeError as e:
        raise TypeError(f"{name}: expected a sequence of ints: {e}") from None


def digest(x: Any, name: str) -> bytes:
    """A SHA-256: 32 bytes, or 64 hexadecimal digits."""
    if isinstance(x, str):
        try:
            x = bytes.fromhex(x)
        except ValueError:
            raise ValueError(f"{name} {x!r} is not hexadecimal") from None
    if not isinstance(x, (bytes, bytearray)):
        raise TypeError(f"{name} is a {type(x).__name__}; expected 32 bytes or 64 hexadecimal digits")
    if len(x) != 32:
        raise ValueError(f"{name} has {len(x)} bytes; expected 32")
    return bytes(x)
