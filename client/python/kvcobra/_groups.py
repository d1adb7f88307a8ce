"""Groups of layers of a model. Layers whose attention is of one kind are a group, which is a model of its own for libkvcobra: it has a
digest, a table, pages and keys of chunks. A model whose layers all have full attention is one group, with the digest of the model.

Layers with multi-head latent attention (MLA) are two groups. Their cache has no keys and values of heads. It has a vector c per token,
from which the keys and values of all heads are computed, and a key with RoPE that all heads share. In group "latent" the first half
of c is the key of one head without RoPE and the second half its value, so values are predicted from keys' codes as everywhere. Group
"rope" has the shared key, and values of 0, which take no bits."""
from __future__ import annotations

import hashlib
from typing import Any, List, Sequence as Items, Tuple

FULL = "full"
HEADS, LATENT, ROPE = "", "latent", "rope"  # what a group has of its layers: keys and values of heads, or a part of MLA


def group_digest(model_digest: bytes, name: str, n_groups: int) -> bytes:
    """The digest that tables and pages of the group @name have. @n_groups: of the model."""
    if n_groups == 1 and name == FULL:
        return model_digest
    return hashlib.sha256(b"kvcobra group 1" + model_digest + name.encode()).digest()


def vectors(part: str, first: Any, second: Any) -> Tuple[Any, Any]:
    """The keys and values of a group that has @part of its layers: views of the two arrays [..., numbers] that the cache of one of them
    has; None for values that are 0. @first or @second may be None: not asked for."""
    if part == LATENT:
        half = 0 if first is None else first.shape[-1] // 2
        return (None, None) if first is None else (first[..., :half], first[..., half:])
    return (second, None) if part == ROPE else (first, second)


def numbers(layers: Items[int]) -> str:
    """@layers, ascending, with runs of three and more as first-last."""
    runs: List[List[int]] = []
    for i in layers:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
