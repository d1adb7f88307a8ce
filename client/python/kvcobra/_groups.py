"""Groups of layers of a model. Layers whose attention is of one kind are a group, which is a model of its own for libkvcobra: it has a
digest, a table, pages and keys of chunks. A model whose layers all have full attention is one group, with the digest of the model."""
from __future__ import annotations

import hashlib
from typing import List, Sequence as Items

FULL = "full"


def group_digest(model_digest: bytes, name: str, n_groups: int) -> bytes:
    """The digest that tables and pages of the group @name have. @n_groups: of the model."""
    if n_groups == 1 and name == FULL:
        return model_digest
    return hashlib.sha256(b"kvcobra group 1" + model_digest + name.encode()).digest()


def numbers(layers: Items[int]) -> str:
    """@layers, ascending, with runs of three and more as first-last."""
    runs: List[List[int]] = []
    for i in layers:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
