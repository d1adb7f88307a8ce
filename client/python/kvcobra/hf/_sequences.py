"""The sequences of one text, one per group of layers, with the calls of one sequence. All groups have the same tokens, but of those that
a match found, a group whose layers attend to a window has only the end."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence as Items, Tuple

import torch

from .. import Model, Sequence
from .._client import Digest
from .._groups import vectors
from ._geometry import Group

CHUNK = 64


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
    """@slack: a query may come so many tokens before the end of a match. @options: of Sequence."""

    def __init__(self, served: List[Served], salt: bytes, table: Optional[Digest], slack: int = 0, **options: Any) -> None:
        self.served = served
        self._places = places([s.group for s in served])
        self._windows = [s.group.kind.window + slack if s.group.kind.window else 0 for s in served]
        self._firsts = [0] * len(served)  # of what a match found, the first token that each group has
        self.parts: List[Sequence] = []
        try:
            for s, window in zip(served, self._windows):
                self.parts.append(Sequence(s.model, salt=salt, keys="after", pairs=s.group.kind.pairs, table=table, window=window, **options))
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int:
        """The number of tokens that every layer has."""
        return min(part.length for part in self.parts)

    @property
    def first(self) -> int:
        """The first token that all groups have."""
        return max(self._firsts, default=0)

    @property
    def least(self) -> int:
        """The first position of a query for which every group has what it sees."""
        return max((first + (s.group.kind.window or 0) - 1 for s, first in zip(self.served, self._firsts) if first), default=0)

    def match(self, tokens: List[int]) -> int:
        """Starts from chunks that are published for every group. Returns the new length. After an error it is that of all groups."""
        n, before = max(0, len(tokens) - 1), -1  # a match leaves one
        try:
            while n != before:  # what one group lacks may be in the window of another for a shorter text
                before = n
                for i in range(len(self.parts)):
                    n = min(n, self._match_part(i, tokens[:n + 1]))
        finally:
            self.truncate(self.length)
        return self.length

    def _match_part(self, i: int, tokens: List[int]) -> int:
        part, n = self.parts[i], len(tokens) - 1
        if part.length > n:
            part.truncate(0 if self._windows[i] else n)
        if part.length < n:
            part.truncate(0 if self._windows[i] else n)
            part.match(tokens)
            self._firsts[i] = max(0, part.length + 1 - self._windows[i]) // CHUNK * CHUNK if self._windows[i] else 0
        return part.length

    def shorten(self, tokens: List[int], n: int) -> int:
        """Keeps @n tokens, a multiple of CHUNK, of what a match of @tokens found, or fewer. Returns the new length."""
        return n if self.truncate(n) == n else self.match(tokens[:n + 1])

    def commit(self, tokens: List[int]) -> int:
        return min(part.commit(tokens) for part in self.parts)

    def truncate(self, n: int) -> int:
        """Keeps the first @n tokens, or whole chunks before @n. Returns the new length."""
        n = min(n, self.length)
        while any(part.length > n for part in self.parts):  # a group that keeps less shortens those before it
            for part in self.parts:
                n = min(n, part.truncate(n))
        self._firsts = [first if part.length else 0 for part, first in zip(self.parts, self._firsts)]
        return n

    def fork(self) -> "Sequences":
        other = Sequences([], b"", None)
        other.served, other._places = self.served, self._places
        other._windows, other._firsts = self._windows, list(self._firsts)
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
        """Decodes positions @at .. @at + n - 1 into what the caches of all layers have: [tokens, heads, numbers] each. Those that a group
        does not have stay as they are."""
        for part, s, first_there in zip(self.parts, self.served, self._firsts):
            skipped = max(0, first_there - at)
            if skipped >= n:
                continue
            sides = [vectors(s.group.part, first[i][skipped:], second[i][skipped:]) for i in s.group.layers]
            part.read_blocks(at + skipped, n - skipped, [k for k, _ in sides], None if sides[0][1] is None else [v for _, v in sides])
            for k, _ in sides if s.group.factor != 1.0 else ():
                k *= s.group.factor

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def __enter__(self) -> "Sequences":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
