"""The sequences of one text, one per group of layers, with the calls of one sequence. All groups have the same tokens."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence as Items, Tuple

from .. import Model, Sequence
from .._client import Digest
from ._geometry import Group


class Served(NamedTuple):
    """A group of layers and the model that libkvcobra has of it."""

    group: Group
    model: Model


def places(served: Items[Served]) -> Dict[int, Tuple[int, int]]:
    """By layer of the model: the number of its group, and its number there."""
    return {layer: (g, i) for g, s in enumerate(served) for i, layer in enumerate(s.group.layers)}


class Sequences:
    """@options: of Sequence."""

    def __init__(self, served: List[Served], salt: bytes, table: Optional[Digest], **options: Any) -> None:
        self.served = served
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
        other.served = self.served
        try:
            for part in self.parts:
                other.parts.append(part.fork())
        except BaseException:
            other.close()
            raise
        return other

    def append(self, layer: int, k: Any, v: Any) -> None:
        group, i = places(self.served)[layer]
        self.parts[group].append(i, k, v)

    def read_blocks(self, first: int, n: int, keys: Items[Any], values: Items[Any]) -> None:
        """As Sequence.read_blocks(), with arrays of all layers of the model."""
        for part, s in zip(self.parts, self.served):
            part.read_blocks(first, n, [keys[i] for i in s.group.layers], [values[i] for i in s.group.layers])

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def __enter__(self) -> "Sequences":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
