"""The geometry of the model that vLLM runs, and the range of KV heads of each tensor-parallel rank."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterable, List, Tuple

import kvcobra

TOLERANCE = 1e-2  # vLLM keeps cosines in the number type of the model, of 8 bits with bfloat16


@dataclass(frozen=True)
class Geometry:
    """As kvcobra.Geometry, and what the engine's keys differ in from stored ones. pairs: of kvcobra.Sequence. factor: the engine's
    rotated keys and queries are multiplied by it (YaRN)."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rot: int
    attn_scale: float
    rope_freq: Tuple[float, ...]
    pairs: str = "half-split"
    factor: float = 1.0

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


def of_model(model_config: Any) -> Geometry:
    """The geometry of a vLLM ModelConfig, from the proof that admits models for transformers. Raises ValueError with the reason if
    it cannot be expressed."""
    from ..hf._geometry import groups_of, one_group
    from ..hf._proof import decoder_class, prove

    config = model_config.hf_text_config
    proof = prove(config, decoder_class(config))
    group = one_group(groups_of(config, proof), proof)
    return Geometry(*group.geometry, pairs=group.kind.pairs, factor=group.kind.factor)


def check_ropes(g: Geometry, ropes: Iterable[Any]) -> None:
    """Raises ValueError unless the rotary embeddings @ropes that vLLM made for a model rotate as @g says."""
    found = list(ropes)
    if g.rope_freq and not found:
        raise ValueError("vLLM made no rotary embedding for the model, so the pairs that it rotates are not known")
    for rope in found:
        pairs = "half-split" if rope.is_neox_style else "interleaved"
        if pairs != g.pairs:
            raise ValueError(f"vLLM rotates {pairs} pairs of the model's keys, transformers {g.pairs} ones")
        n = len(g.rope_freq)
        if rope.cos_sin_cache.shape[-1] != 2 * n:
            raise ValueError(f"vLLM rotates {rope.cos_sin_cache.shape[-1]} dimensions of the model's keys, transformers {2 * n}")
        for position in (0, 1, 17):
            row = [float(x) for x in rope.cos_sin_cache[position]]
            for i, f in enumerate(g.rope_freq):
                if max(abs(row[i] - g.factor * math.cos(position * f)), abs(row[n + i] - g.factor * math.sin(position * f))) > TOLERANCE:
                    raise ValueError(f"vLLM rotates the model's keys by other angles than transformers (frequency {i}, position {position})")
