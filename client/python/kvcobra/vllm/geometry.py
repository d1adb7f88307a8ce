"""The geometry of the model that vLLM runs, and the range of KV heads of each tensor-parallel rank."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Tuple

# Architectures whose keys vLLM rotates in half-split pairs. Another one could rotate other pairs, and its configuration does
# not say so.
ARCHITECTURES = ("GemmaForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM",
                 "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Geometry:
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rot: int
    attn_scale: float
    rope_freq: Tuple[float, ...]


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


def rope_frequencies(config: Any, head_dim: int) -> Tuple[int, Tuple[float, ...]]:
    """The rotated dimensions and their frequencies in radians per position. @config: of the text model in transformers.
    Raises ValueError for a RoPE that changes with the length, or that scales keys."""
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ValueError(f"the model's RoPE is of type {kind!r}; supported are {', '.join(ROPE_TYPES)}")
    if "rope_theta" not in rope:
        raise ValueError("the model's configuration has no rope_theta, or one for each type of layer")
    n_rot = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if kind == "default":
        return n_rot, tuple(float(rope["rope_theta"]) ** (-2.0 * i / n_rot) for i in range(n_rot // 2))

    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    if abs(factor - 1.0) > 1e-6:
        raise ValueError(f"the model's RoPE of type {kind!r} multiplies keys by {factor:.6g}, which keys before RoPE cannot "
                         "express")
    return n_rot, tuple(frequencies.double().tolist())


def of_model(model_config: Any) -> Geometry:
    """The geometry of a vLLM ModelConfig. Raises ValueError with the reason if it cannot be expressed."""
    architectures = list(model_config.hf_config.architectures or [])
    if len(architectures) != 1 or architectures[0] not in ARCHITECTURES:
        raise ValueError(f"the model's architecture is {', '.join(architectures) or 'unknown'}; supported are "
                         f"{', '.join(ARCHITECTURES)}")
    config = model_config.hf_text_config
    head_dim = model_config.get_head_size()
    n_rot, frequencies = rope_frequencies(config, head_dim)
    return Geometry(n_layers=config.num_hidden_layers, n_heads=config.num_attention_heads,
                    n_kv_heads=model_config.get_total_num_kv_heads(), head_dim=head_dim, n_rot=n_rot,
                    attn_scale=head_dim ** -0.5, rope_freq=frequencies)
