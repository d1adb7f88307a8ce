"""The caller's cache as destination of Sequence.read_blocks(): the arrays of the layers become a kvc_blocks."""
from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence as Items, Tuple

from . import _arrays
from ._arrays import View
from ._library import ffi, new


def destinations(n_layers: int, n_heads: int, head_dim: int, first: int, n: int, keys: Optional[Items[Any]],
                 values: Optional[Items[Any]], blocks: Any, gpu: Optional[int]) -> Iterator[Tuple[Any, Any]]:
    """kvc_blocks structs, each with the memory that it points to. Keys and values need one each if their layouts differ.
    Everything is checked before the first is returned: the library writes where the arrays say."""
    if first < 0 or n < 0:
        raise ValueError(f"positions {first} .. {first} + {n} - 1; expected numbers of 0 or more")
    sides = [_views(side, arrays, n_layers, n_heads, head_dim, gpu) for side, arrays in (("keys", keys), ("values", values))]
    used = [views for views in sides if any(views)]
    if not used:
        raise ValueError("keys and values have no array")
    numbers = None
    for views in used:
        example = next(v for v in views if v)
        numbers = _check_room(example, first, n, blocks)
    if len(used) == 2 and _layout(used[0]) == _layout(used[1]):
        plans = [sides]
    else:
        plans = [[sides[0], []], [[], sides[1]]]
    return iter([_struct(plan, n_layers, numbers) for plan in plans if any(any(views) for views in plan)])


def _views(side: str, arrays: Optional[Items[Any]], n_layers: int, n_heads: int, head_dim: int,
           gpu: Optional[int]) -> List[Optional[View]]:
    if arrays is None:
        return []
    if len(arrays) != n_layers:
        raise ValueError(f"{side} has {len(arrays)} arrays; expected {n_layers}, one per layer, None where it is not read")
    views = [None if a is None else _arrays.view(a, f"{side}[{i}]", gpu) for i, a in enumerate(arrays)]
    example: Optional[View] = None
    for i, v in enumerate(views):
        if v is None:
            continue
        name = f"{side}[{i}]"
        if len(v.shape) not in (3, 4) or v.shape[-2:] != (n_heads, head_dim):
            raise ValueError(f"{name} has shape {list(v.shape)}; expected [blocks, tokens, {n_heads}, {head_dim}] or "
                             f"[tokens, {n_heads}, {head_dim}]")
        _arrays.check_writable(v, name)
        if any(s < 1 for s, size in zip(v.strides, v.shape) if size > 1):
            raise ValueError(f"{name} has strides {list(v.strides)}; expected positive ones")
        example = example or v
        if (v.shape, v.strides, v.dtype) != (example.shape, example.strides, example.dtype):
            raise ValueError(f"{name} has shape {list(v.shape)}, strides {list(v.strides)}, {_arrays.NAMES[v.dtype]}; expected "
                             f"those of the first layer: {list(example.shape)}, {list(example.strides)}, "
                             f"{_arrays.NAMES[example.dtype]}")
    return views


def _layout(views: List[Optional[View]]) -> Any:
    example = next(v for v in views if v)
    return example.shape, example.strides, example.dtype


def _check_room(v: View, first: int, n: int, blocks: Any) -> Any:
    """Raises if a position would be stored outside of @v. Returns @blocks as int64_t[], or None."""
    if len(v.shape) == 3:
        if blocks is not None:
            raise ValueError("blocks needs arrays [blocks, tokens, heads, dim]")
        if n > v.shape[0]:
            raise ValueError(f"{n} positions, but the arrays have room for {v.shape[0]} tokens")
        return None
    n_blocks, block_tokens = v.shape[:2]
    if block_tokens == 0:
        raise ValueError("the arrays have blocks of 0 tokens")
    n_used = -(-(first + n) // block_tokens)
    if blocks is None:
        if n_used > n_blocks:
            raise ValueError(f"positions up to {first + n} need {n_used} blocks of {block_tokens} tokens; the arrays have "
                             f"{n_blocks}")
        return None
    numbers = list(blocks.tolist() if hasattr(blocks, "tolist") else blocks)
    if len(numbers) < n_used:
        raise ValueError(f"blocks has {len(numbers)} entries; expected {n_used} for positions up to {first + n}")
    for i in range(first // block_tokens, n_used):
        if not 0 <= numbers[i] < n_blocks:
            raise ValueError(f"blocks[{i}] is {numbers[i]}; expected 0..{n_blocks - 1}")
    return ffi.new("int64_t[]", numbers)


def _struct(plan: List[List[Optional[View]]], n_layers: int, numbers: Any) -> Tuple[Any, Any]:
    bases = ffi.new("void *[]", 2 * n_layers)
    example: Optional[View] = None
    for side, views in enumerate(plan):
        for layer, v in enumerate(views):
            if v is not None:
                bases[2 * layer + side] = _arrays.pointer(v)
                example = example or v
    assert example is not None
    to = new("kvc_blocks", bases=bases, dtype=example.dtype, token_stride=example.strides[-3], head_stride=example.strides[-2],
             dim_stride=example.strides[-1])
    if len(example.shape) == 4:
        to.block_stride, to.block_tokens = example.strides[0], example.shape[1]
        to.blocks = ffi.NULL if numbers is None else numbers
    return to, (bases, numbers, plan)
