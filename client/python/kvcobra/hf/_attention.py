"""The attention function and the mask function that transformers finds by the name "kvcobra".

With a KvCobraCache attention runs on its codes. With any other cache the same functions do what "sdpa" does, so a model that
was prepared for a KvCobraCache works without one.
"""
from __future__ import annotations

import threading
from typing import Any, Optional, Tuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "kvcobra"
TAG = "_kvcobra_layer"  # attribute of the keys that a KvCobraLayer returned


# of this thread: a decoder computes with a KvCobraCache now
_pass = threading.local()


def begin_pass(with_codes: bool) -> None:
    _pass.with_codes = with_codes


class Mask:
    """The arguments of a mask, which is made only where sdpa needs it: it has one element per query and key."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._arguments, self._named = arguments, named
        self._made = False
        self._mask: Optional[torch.Tensor] = None

    def sdpa(self) -> Optional[torch.Tensor]:
        if not self._made:
            self._mask, self._made = sdpa_mask(*self._arguments, **self._named), True
        return self._mask


def make_mask(*arguments: Any, **named: Any) -> Any:
    """A Mask within a forward pass that has a KvCobraCache; outside, and with other caches, sdpa's own, which transformers may ask
    for anything."""
    return Mask(*arguments, **named) if getattr(_pass, "with_codes", False) else sdpa_mask(*arguments, **named)


def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
              scaling: Optional[float] = None, dropout: float = 0.0, **kwargs: Any) -> Tuple[torch.Tensor, None]:
    """@query: [rows, heads, tokens, head_dim]. Returns [rows, tokens, heads, head_dim]."""
    layer = getattr(key, TAG, None)
    if layer is not None:
        key, value, out = layer.attend(module, query, key, value, scaling, dropout, kwargs)
        if out is not None:
            return out, None
    if isinstance(attention_mask, Mask):
        attention_mask = attention_mask.sdpa()
    result: Tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                                               scaling=scaling, **kwargs)
    return result


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, make_mask)
