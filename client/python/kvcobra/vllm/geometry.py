"""The groups of layers of the model that vLLM runs, the blocks of its cache, and the range of KV heads of each tensor-parallel rank."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence as Items, Tuple

import kvcobra

from .._groups import FULL, HEADS, ROPE, numbers
from .metadata import CHUNK

NULL_BLOCK = 0  # vLLM's, in place of blocks that no layer of a group needs
TOLERANCE = 1e-2  # vLLM keeps cosines in the number type of the model, of 8 bits with bfloat16


@dataclass(frozen=True)
class Geometry:
    """A group of layers, which is a model of its own for kvcobrad: as kvcobra.Geometry, and what the engine's keys differ in from stored
    ones. pairs: of kvcobra.Sequence. factor: the engine's rotated keys and queries are multiplied by it (YaRN). name: of the group.
    layers: their numbers in the model, () for all. window: tokens that its layers attend to; None: all. needs: what the library's own
    attention lacks for it; "": nothing. part: what of the layers' cache it has (vectors() of _groups.py)."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rot: int
    attn_scale: float
    rope_freq: Tuple[float, ...]
    pairs: str = "half-split"
    factor: float = 1.0
    name: str = FULL
    layers: Tuple[int, ...] = ()
    window: Optional[int] = None
    needs: str = ""
    part: str = HEADS

    def __post_init__(self) -> None:
        if not self.layers:
            object.__setattr__(self, "layers", tuple(range(self.n_layers)))

    @property
    def of_table(self) -> kvcobra.Geometry:
        return kvcobra.Geometry(*(getattr(self, name) for name in kvcobra.Geometry._fields))


@dataclass(frozen=True)
class Shard:
    """KV heads first .. first + n - 1. @owner: the rank that publishes them; other ranks may hold copies."""

    first: int
    n: int
    owner: int


def shard(n_kv_heads: int, n_ranks: int, rank: int) -> Shard:
    """The KV heads of one rank, divided as vLLM divides them."""
    if n_kv_heads >= n_ranks:
        n = n_kv_heads // n_ranks
        return Shard(rank * n, n, rank)
    copies = n_ranks // n_kv_heads
    return Shard(rank // copies, 1, rank // copies * copies)


def shards(n_kv_heads: int, n_ranks: int) -> List[Shard]:
    """The different shards of an engine, in order."""
    return sorted({shard(n_kv_heads, n_ranks, rank) for rank in range(n_ranks)}, key=lambda s: s.first)


def of_model(model_config: Any) -> Tuple[Geometry, ...]:
    """The groups of layers of a vLLM ModelConfig, from the proof that admits models for transformers. Raises ValueError with the
    reason if they cannot be expressed."""
    from ..hf._geometry import groups_of, needs_dense, refuse_states
    from ..hf._proof import decoder_class, prove

    config = model_config.hf_text_config
    proof = prove(config, decoder_class(config))
    groups = groups_of(config, proof)
    refuse_states(proof)
    return tuple(Geometry(*group.geometry, pairs=group.kind.pairs, factor=group.factor, name=group.name, layers=group.layers,
                          window=group.kind.window, needs=needs_dense([group]), part=group.part) for group in groups)


def units(groups: Items[Geometry]) -> List[List[int]]:
    """The numbers of @groups, those together that have parts of the same layers (MLA)."""
    found: List[List[int]] = []
    for i, g in enumerate(groups):
        if g.part == ROPE:  # its group "latent" is the one before
            found[-1].append(i)
        else:
            found.append([i])
    return found


def with_ropes(groups: Items[Geometry], ropes: Iterable[Any]) -> Tuple[Geometry, ...]:
    """@groups with the order of pairs that vLLM's cache has. Raises ValueError unless the rotary embeddings @ropes that vLLM made for a
    model rotate as @groups say: each as one group, and each group as one of them. Of a key that all heads share (MLA) transformers may
    keep the pairs in another order than the weights have them, and vLLM: libkvcobra knows both orders."""
    found = list(ropes)
    if any(g.rope_freq for g in groups) and not found:
        raise ValueError("vLLM made no rotary embedding for the model, so the pairs that it rotates are not known")
    styles = {_pairs(rope) for rope in found}
    groups = tuple(replace(g, pairs=min(styles)) if g.part == ROPE and len(styles) == 1 else g for g in groups)
    rotated = [g for g in groups if g.rope_freq]
    for rope in found:
        reasons = [_difference(g, rope) for g in rotated or groups]
        if all(reasons):
            raise ValueError(reasons[0])
    for g in rotated:
        if all(_difference(g, rope) for rope in found):
            raise ValueError(f"vLLM has no rotary embedding that rotates the keys of layers {numbers(g.layers)} as transformers does")
    return groups


def _pairs(rope: Any) -> str:
    return "half-split" if rope.is_neox_style else "interleaved"


def _difference(g: Geometry, rope: Any) -> str:
    """How vLLM's rotary embedding @rope differs from the rotation of @g; "": it does not."""
    if _pairs(rope) != g.pairs:
        return f"vLLM rotates {_pairs(rope)} pairs of the model's keys, transformers {g.pairs} ones"
    n = len(g.rope_freq)
    if rope.cos_sin_cache.shape[-1] != 2 * n:
        return f"vLLM rotates {rope.cos_sin_cache.shape[-1]} dimensions of the model's keys, transformers {2 * n}"
    for position in (0, 1, 17):
        row = [float(x) for x in rope.cos_sin_cache[position]]
        for i, f in enumerate(g.rope_freq):
            if max(abs(row[i] - g.factor * math.cos(position * f)), abs(row[n + i] - g.factor * math.sin(position * f))) > TOLERANCE:
                return f"vLLM rotates the model's keys by other angles than transformers (frequency {i}, position {position})"
    return ""


@dataclass(frozen=True)
class Blocks:
    """The blocks of vLLM's cache. Each of its own groups of layers has a list of blocks per request. of_layer: that group of each layer
    of the model. tokens: of a block of each group. whole: the groups with blocks of all tokens, also of layers with a window
    (--disable-hybrid-kv-cache-manager)."""

    of_layer: Tuple[int, ...]
    tokens: Tuple[int, ...]
    whole: FrozenSet[int] = frozenset()

    @property
    def common(self) -> int:
        """A multiple of it is whole blocks of every group."""
        return math.lcm(*self.tokens)

    def window(self, g: Geometry) -> int:
        """How many of the last tokens of a match @g needs, that vLLM loads to a multiple of `common`; 0: all. vLLM may give the blocks in which
        a window begins to other requests, so they are filled as a whole. A match ends at a multiple of CHUNK, and the load before it."""
        if g.window is None or any(self.of_layer[i] in self.whole for i in g.layers):
            return 0
        tokens = max(self.tokens[self.of_layer[i]] for i in g.layers)
        return g.window + tokens - 1 + self.common - math.gcd(self.common, CHUNK)

    def needed(self, blocks: Items[Items[int]], layers: Items[int], first: int, end: int) -> int:
        """The first position from @first on that @layers need of positions to @end: vLLM has no block (number 0) for those that are
        outside of a window. @blocks: of a request, by group."""
        return min(self._needed(blocks[group], self.tokens[group], first, end) for group in {self.of_layer[i] for i in layers})

    @staticmethod
    def _needed(blocks: Items[int], tokens: int, first: int, end: int) -> int:
        n = -(-end // tokens)
        while n > first // tokens and blocks[n - 1] != NULL_BLOCK:
            n -= 1
        return max(first, n * tokens)


def layer_number(name: str) -> int:
    """The number of the layer that vLLM calls @name, such as "model.layers.7.self_attn.attn". Raises ValueError if there is not one."""
    found = [int(word) for word in name.split(".") if word.isdecimal()]
    if len(found) != 1:
        raise ValueError(f"vLLM names a layer {name!r}, which has not one number")
    return found[0]


def blocks_of(kv_cache_groups: Iterable[Any]) -> Blocks:
    """@kv_cache_groups: of vLLM's KVCacheConfig, of layers 0, 1, 2, ..."""
    of_layer: Dict[int, int] = {}
    tokens: List[int] = []
    whole: List[int] = []
    for i, group in enumerate(kv_cache_groups):
        tokens.append(group.kv_cache_spec.block_size)
        if type(group.kv_cache_spec).__name__ != "SlidingWindowSpec":
            whole.append(i)
        of_layer.update((layer_number(name), i) for name in group.layer_names)
    return Blocks(tuple(of_layer[i] for i in range(len(of_layer))), tuple(tokens), frozenset(whole))
