"""The sequences of one text, one per group of layers, with the calls of one sequence. All groups have the same tokens."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence as Items, Tuple

import torch

from .. import Model, Sequence
from .._client import Digest
from .._groups import vectors
from ._geometry import Group


class Served(NamedTuple):
    """A group of layers and the model that libkvcobra has of it."""

    group: Group
    model: Model


def places(groups: Items[Group]) -> Dict[int, List[Tuple[int, int]]]:
    """By layer of the model: the numbers of its groups, and its number in each."""
    found: Dict[int, List[Tuple[int, int]]] = {}
    for g, group in enumerate(groups):
        for i, layer in enumerate(group.layers):
            found.setdefault(layer, []).append((g, i))
    return found


class Sequences:
    """@options: of Sequence."""

    def __init__(self, served: List[Served], salt: bytes, table: Optional[Digest], **options: Any) -> None:
        self.served = served
        self._places = places([s.group for s in served])
        self.parts: List[Sequence] = []
        try:
            for s in served:
                self.parts.append(Sequence(s.model, salt=salt, keys="after", pairs=s.group.kind.pairs, table=table, **options))
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int:
        """The number of tokens that every layer has."""
        return min(part.length for part in self.parts)

    def match(self, tokens: List[int]) -> int:
        """Starts from chunks that are published for every group. Returns the new length. After an error it is that of all groups."""
        try:
            for part in self.parts:
                part.match(tokens)
        finally:
            self.truncate(self.length)
        return self.length

    def commit(self, tokens: List[int]) -> int:
        return min(part.commit(tokens) for part in self.parts)

    def truncate(self, n: int) -> int:
        """Keeps the first @n tokens, or whole chunks before @n. Returns the new length."""
        for part in self.parts:
            n = min(n, part.truncate(n))
        for part in self.parts:
            if part.length > n:  # a group before one that kept less
                part.truncate(n)
        return n

    def fork(self) -> "Sequences":
        other = Sequences([], b"", None)
        other.served, other._places = self.served, self._places
        try:
            for part in self.parts:
                other.parts.append(part.fork())
        except BaseException:
            other.close()
            raise
        return other

    def append(self, layer: int, first: torch.Tensor, second: torch.Tensor) -> None:
        """@first, @second: what the cache of @layer has of the next tokens, [tokens, heads, numbers]."""
        for g, i in self._places[layer]:
            group = self.served[g].group
            k, v = vectors(group.part, first, second)
            self.parts[g].append(i, k / group.factor if group.factor != 1.0 else k, torch.zeros_like(k) if v is None else v)

    def read(self, at: int, n: int, first: Items[torch.Tensor], second: Items[torch.Tensor]) -> None:
        """Decodes positions @at .. @at + n - 1 into what the caches of all layers have: [tokens, heads, numbers] each."""
        for part, s in zip(self.parts, self.served):
            sides = [vectors(s.group.part, first[i], second[i]) for i in s.group.layers]
            part.read_blocks(at, n, [k for k, _ in sides], None if sides[0][1] is None else [v for _, v in sides])
            for k, _ in sides if s.group.factor != 1.0 else ():
                k *= s.group.factor

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def __enter__(self) -> "Sequences":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
