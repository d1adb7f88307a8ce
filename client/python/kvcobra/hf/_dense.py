"""The rows of a cache whose keys and values stay dense in the layers of transformers, where the model's own attention reads them. Pages
serve match() and commit() only: chunks that others published are decoded into the layers, and commit() encodes what the layers
have. For a model on a GPU both happen there.
"""
from __future__ import annotations

import copy
from typing import Any, List, Optional

import torch

from .. import Error
from .._client import Digest
from ._rows import Row, Rows
from ._sequences import CHUNK, Sequences, Served

PIECE_TOKENS = 1024  # of all layers, encoded between two commits: a client's arena bounds what is not committed


class DenseRow(Row):
    """One text. @sequence has a part of it, from its beginning: what was found or published."""

    n_columns = 0  # of the layers
    first = 0  # before this token, layers with a window have zeros instead of what was found
    least = 0  # the first token of a query that sees none of them

    @property
    def length(self) -> int:
        return max(0, self.n_columns - (self.padding or 0))

    def fork(self) -> "DenseRow":
        row = DenseRow(self.sequence.fork(), None, self.padding)
        row.tokens, row.n_columns = None if self.tokens is None else list(self.tokens), self.n_columns
        row.first, row.least = self.first, self.least
        return row


class DenseRows(Rows):
    """@layers: DynamicLayers of transformers, empty or with the keys and values of all rows."""

    def __init__(self, served: List[Served], salt: bytes, table: Optional[Digest], dtype: torch.dtype, device: torch.device,
                 layers: List[Any]) -> None:
        super().__init__(served, salt, False, table, dtype)
        self._device, self._layers = device, layers

    def new_row(self, slack: int = 0) -> DenseRow:
        return DenseRow(Sequences(self.served, self.salt, self.table, slack, publish_all=True))

    def fork(self) -> "DenseRows":
        other = super().fork()
        assert isinstance(other, DenseRows)
        other._layers = [copy.deepcopy(layer) for layer in self._layers]
        return other

    @property
    def layers(self) -> List[Any]:
        """Those of the cache."""
        return self._layers

    def prepare(self, before: int, *arguments: Any) -> None:
        self._set_columns(before)
        super().prepare(before, *arguments)
        self._set_columns(before)

    def _set_columns(self, n: int) -> None:
        for row in self.rows:
            assert isinstance(row, DenseRow)
            row.n_columns = n

    def _follow_stream(self) -> None:
        """The layers are written and read by the work of torch's current stream."""
        if self._device.type == "cuda":
            self.served[0].model.client.set_stream(torch.cuda.current_stream(self._device))

    # ---- sharing ----

    def match(self, texts: List[List[int]], paddings: List[int]) -> int:
        """Starts the rows and the layers from published chunks. Returns the number of columns that need not be computed."""
        self._follow_stream()
        columns = super().match(texts, paddings)
        for row, text in zip(self.rows, texts):
            assert isinstance(row, DenseRow)
            row.tokens = text[:max(0, columns - (row.padding or 0))]
            row.first, row.least = row.sequence.first, row.sequence.least
        if columns:
            self._decode(columns)
        self._set_columns(columns)
        for row in self.rows:
            row.sequence.truncate(row.length // CHUNK * CHUNK)  # another row ended the match here
        return columns

    def _decode(self, columns: int) -> None:
        sides = self.decode(columns, self._device)
        for layer, k, v in zip(self._layers, *sides):
            layer.update(k.transpose(1, 2), v.transpose(1, 2))

    def commit(self) -> List[int]:
        if not self.rows:
            return []
        self._follow_stream()
        self._set_columns(self._layers[0].get_seq_length())
        for i, row in enumerate(self.rows):
            try:
                self._encode(i, row)
            except Error as e:
                self.say("commit", f"keys and values stay private: {e.strerror}")
        return super().commit()

    def _encode(self, i: int, row: Row) -> None:
        """Brings the row's sequence to the whole chunks of the layers."""
        assert isinstance(row, DenseRow)
        end = row.length // CHUNK * CHUNK
        if row.tokens is not None and row.sequence.length < row.first:
            row.sequence.match(row.tokens[:end] + [0])  # a match leaves one
            if row.sequence.length < row.first:
                self.say("window", "keys and values stay private: the pages before them are gone, and layers with a window have only the end "
                         "of what match() found")
                return
        while row.tokens is not None and row.sequence.length < end:
            first = row.sequence.length
            at, n = first + (row.padding or 0), min(PIECE_TOKENS, end - first)
            for number, layer in enumerate(self._layers):
                row.sequence.append(number, *(x[i, :, at:at + n].transpose(0, 1) for x in (layer.keys, layer.values)))
            if row.sequence.commit(row.tokens[:first + n]) < first + n:
                return  # the pool is full: the prompt is published up to here

    # ---- rows ----

    def crop(self, columns: int) -> int:
        self.plan = self.pending = None
        lengths = [max(0, columns - (row.padding or 0)) for row in self.rows]
        whole = columns
        if any(isinstance(row, DenseRow) and n < row.least for row, n in zip(self.rows, lengths)):
            if any(row.tokens is None for row in self.rows):
                raise ValueError("the cache cannot be cropped so far: of what match() found, layers with a window have only the end, and the "
                                 "ids of some tokens, from which the rest could be computed again, are not known")
            whole = 0
        for layer in self._layers:
            if whole < layer.get_seq_length():
                layer.crop(whole - layer.get_seq_length())
        for row, n in zip(self.rows, lengths):
            assert isinstance(row, DenseRow)
            row.sequence.truncate(min(n if whole else 0, row.sequence.length))
            row.tokens = None if row.tokens is None else row.tokens[:n]
            if whole == 0:
                row.first = row.least = 0
            if n == 0:
                row.padding = None  # the next input may have another
        self._set_columns(whole)
        return whole
