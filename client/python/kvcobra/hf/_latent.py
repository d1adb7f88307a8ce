"""Multi-head latent attention (MLA) in the proof of _proof.py: what the cache of a layer has, and that it is all its attention needs."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, Optional, Tuple

import torch
from transformers.cache_utils import DynamicCache

RANK_MAX = 512  # numbers of a latent: two halves of the most that a head has
WIDTH_MIN = 32  # least numbers of a head in a table

Pair = Tuple[torch.Tensor, torch.Tensor]


def has_latent(config: Any) -> bool:
    return bool(getattr(config, "kv_lora_rank", None))


class Probe(DynamicCache):  # type: ignore[misc]
    """An empty cache that notes what it is given. found: by layer, [heads, tokens, numbers] twice. given: what it returns in place of
    that."""

    def __init__(self, config: Any, given: Optional[Dict[int, Pair]] = None) -> None:
        super().__init__(config=config)
        self.found: Dict[int, Pair] = {}
        self._given = given

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *arguments: Any, **named: Any) -> Pair:
        self.found[layer_idx] = (key_states[0], value_states[0])
        if self._given is None:
            return key_states, value_states
        first, second = self._given[layer_idx]
        return first[None].to(key_states.dtype), second[None].to(value_states.dtype)


def _constant(x: torch.Tensor, like: torch.Tensor) -> bool:
    return bool((x - like[:, :1]).abs().max() <= 1e-9 * like.abs().max())


def shared_key(layer: int, seen: Any, pair: Pair, first: Pair) -> SimpleNamespace:
    """The key that all heads of @layer share, and what the queries have for it, of a run in which a layer gets the same at every
    position. @pair: what the cache got; @first: in the run from position 0. Raises ValueError if other parts of queries or of what the
    cache has depend on the position."""
    latent, key = pair
    if latent.shape[0] != 1 or key.shape[0] != 1:
        raise ValueError(f"layer {layer}: its latent attention (MLA) keeps {latent.shape[0]} and {key.shape[0]} vectors per token; expected one "
                         "latent and one key")
    rest = seen.query[..., :-key.shape[-1]]
    if not _constant(latent, first[0]) or not _constant(rest, rest):
        raise ValueError(f"layer {layer}: its latents or its queries without RoPE depend on the position (a temperature of attention)")
    return SimpleNamespace(key=key.double(), query=seen.query[..., -key.shape[-1]:])


def rank_of(layer: int, pair: Pair) -> int:
    """The numbers of the latent of @layer. Raises ValueError if a table cannot have it."""
    rank, width = pair[0].shape[-1], pair[1].shape[-1]
    if rank % 2 or not 2 * WIDTH_MIN <= rank <= RANK_MAX:
        raise ValueError(f"layer {layer}: its latents have {rank} numbers; expected an even number from {2 * WIDTH_MIN} to {RANK_MAX}")
    if width < WIDTH_MIN:
        raise ValueError(f"layer {layer}: its shared key has {width} numbers; expected at least {WIDTH_MIN}")
    return int(rank)


def check_sufficient(seen: Dict[int, Any], again: Dict[int, Any]) -> None:
    """Raises ValueError unless the keys and values of heads are made of what the cache returns alone. @seen: what attention got of one
    text; @again: of another text, with a cache that returned what the first one gave it."""
    for i, one in seen.items():
        for a, b in ((one.key, again[i].key), (one.value, again[i].value)):
            if a.shape != b.shape or not bool((a - b).abs().max() <= 1e-9 * a.abs().max()):
                raise ValueError(f"layer {i}: its keys and values are not made of what its cache has alone")
