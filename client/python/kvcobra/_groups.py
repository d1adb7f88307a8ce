"""Groups of layers of a model."""
from __future__ import annotations

from typing import List, Sequence as Items


def numbers(layers: Items[int]) -> str:
    """@layers, ascending, with runs of three and more as first-last."""
    runs: List[List[int]] = []
    for i in layers:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
