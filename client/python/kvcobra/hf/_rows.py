"""The rows of a batch: one sequence of libkvcobra each, without the padding, and the plan of a forward pass.

A column is a position in the batch's tensors, padding included. Row r's token i is in column padding + i.
"""
from __future__ import annotations

import copy
import errno
import logging
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import Error
from .._client import Digest
from ._sequences import CHUNK, Sequences, Served, places

log = logging.getLogger("kvcobra")


class Row:
    """One text. @tokens: the ids of all tokens of the sequence; None: some came as embeddings, so it cannot be published."""

    def __init__(self, sequence: Sequences, tokens: Optional[List[int]] = None, padding: Optional[int] = None) -> None:
        self.sequence = sequence
        self.tokens: Optional[List[int]] = [] if tokens is None else tokens
        self.padding = padding  # columns before the first token; None: not known yet
        self.n_matched = 0

    @property
    def length(self) -> int:
        """Tokens whose keys and values the row has."""
        return self.sequence.length

    def add_tokens(self, new: Optional[List[int]], at: int) -> None:
        """The tokens from @at on become @new."""
        if self.tokens is None or new is None:
            self.tokens = None
        else:
            del self.tokens[at:]
            self.tokens += new

    def fork(self) -> "Row":
        row = Row(self.sequence.fork(), None, self.padding)
        row.tokens, row.n_matched = None if self.tokens is None else list(self.tokens), self.n_matched
        return row

    def check_truncate(self, n: int) -> None:
        """Raises ValueError if truncate() would drop tokens before @n whose ids are not known."""
        if self.tokens is not None or n >= self.sequence.length:
            return
        with self.sequence.fork() as fork:
            if fork.truncate(n) != n:
                raise ValueError(f"the cache cannot be cropped to {n} tokens: they are packed in chunks of {CHUNK}, and their ids, "
                                 "from which the start of a chunk could be computed again, are not known")

    def truncate(self, n: int) -> int:
        """Keeps @n tokens, or fewer: position @n may be in a page, which goes as a whole. The first @n of @tokens stay, from which
        the rest can be computed again. Returns the new length."""
        kept = self.sequence.truncate(n)
        self.tokens = None if self.tokens is None else self.tokens[:n]
        self.n_matched = min(self.n_matched, kept)
        return kept


class Part(NamedTuple):
    """What a forward pass does with a row: columns @first .. of the piece are tokens, the first @n_stored of them are in the
    sequence already."""

    row: Row
    number: int
    first: int
    n_stored: int


class Plan(NamedTuple):
    """A forward pass of @n_columns columns that begins at column @before."""

    before: int
    n_columns: int
    parts: List[Part]


class Rows:
    """The rows of a cache. @served: the groups of layers; none: the cache is a plain one (is_plain)."""

    def __init__(self, served: List[Served], salt: bytes, repeatable: bool, table: Optional[Digest], dtype: torch.dtype) -> None:
        self.served, self.places, self.dtype = served, places([s.group for s in served]), dtype
        self.salt, self.repeatable, self.table = salt, repeatable, table
        self.rows: List[Row] = []
        self.plan: Optional[Plan] = None
        self.pending: Optional[int] = None  # layer whose keys are on their way to attention()
        self.is_plain = not served
        self.least = 0  # of a cache that became plain: the first column of a query for which the layers have what it sees
        self.dense: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}  # by layer, of a cache that became plain
        self._said: Set[str] = set()

    def say(self, kind: str, sentence: str) -> None:
        """Logs one line per kind of event."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s", sentence)

    def new_row(self, slack: int = 0) -> Row:
        """@slack: of Sequences."""
        return Row(Sequences(self.served, self.salt, self.table, slack, repeatable=self.repeatable))

    def group_of(self, layer: int) -> Served:
        """The group of @layer, the first of two if it has MLA."""
        return self.served[self.places[layer][0][0]]

    def fork(self) -> "Rows":
        """The same rows once more. On failure nothing has changed."""
        other = copy.copy(self)
        other.rows, other.plan, other.pending = [], None, None
        other.dense, other._said = dict(self.dense), set(self._said)
        try:
            for row in self.rows:
                other.rows.append(row.fork())
        except BaseException:
            other.close()
            raise
        return other

    def close(self) -> None:
        for row in self.rows:
            row.sequence.close()
        self.rows, self.plan, self.pending = [], None, None

    def reset(self) -> None:
        self.close()
        self.dense.clear()
        self.is_plain, self.least = not self.served, 0

    def crop(self, columns: int) -> int:
        """Keeps @columns columns, or fewer (Row.truncate()). Returns the number of columns that no row lacks."""
        self.plan = self.pending = None
        lengths = [max(0, columns - (row.padding or 0)) for row in self.rows]
        for row, n in zip(self.rows, lengths):
            row.check_truncate(n)
        self._check_windows(lengths)
        whole = columns
        for row, n in zip(self.rows, lengths):
            kept = row.truncate(n)
            if kept < n:
                whole = min(whole, (row.padding or 0) + kept)
            if n == 0:
                row.padding = None  # the next input may have another
        return self._crop_windows(whole)

    def _check_windows(self, lengths: List[int]) -> None:
        """Raises ValueError if rows of @lengths tokens might have to be computed from their beginning, and their ids are not known."""
        if any(row.tokens is None for row in self.rows) and any(
                row.sequence.least > max(0, n - 2 * CHUNK) for row, n in zip(self.rows, lengths)):
            raise ValueError("the cache cannot be cropped so far: of what match() found, layers with a window have only the end, and the ids "
                             "of some tokens, from which the rest could be computed again, are not known")

    def _crop_windows(self, whole: int) -> int:
        """Empties the rows that lack what a query at column @whole sees. Returns the number of columns that no row lacks."""
        for _ in self.rows:
            for row in self.rows:
                if max(0, whole - (row.padding or 0)) < row.sequence.least:
                    row.n_matched = row.sequence.truncate(0)
                    whole = min(whole, row.padding or 0)
        return whole

    def check_plain_crop(self, columns: int) -> None:
        """Raises ValueError if a cache that became plain cannot be cropped to @columns columns."""
        if 0 < columns < self.least:
            raise ValueError(f"the cache cannot be cropped to {columns} columns: of what match() found, layers with a window have only the "
                             f"end, so at least {self.least} columns must stay. Call reset()")
        if columns == 0:
            self.least = 0

    def input(self, first: int, end: int) -> Dict[str, torch.Tensor]:
        """The arguments of a forward pass that computes columns @first .. @end - 1 again."""
        columns = torch.arange(end)
        paddings = torch.tensor([row.padding or 0 for row in self.rows])[:, None]
        ids = torch.zeros((len(self.rows), end), dtype=torch.long)
        for i, row in enumerate(self.rows):
            if row.tokens and end > int(paddings[i]):
                ids[i, int(paddings[i]):] = torch.tensor(row.tokens[:end - int(paddings[i])])
        return {"input_ids": ids[:, first:], "attention_mask": (columns >= paddings).long(),
                "position_ids": (columns - paddings).clamp(min=0)[:, first:]}

    def go_plain(self, columns: int) -> None:
        """Decodes the first @columns columns of all layers into tensors [rows, heads, columns, head_dim], and frees the rows."""
        sides = self.decode(columns, torch.device("cpu"))
        self.dense = {i: (k.transpose(1, 2), v.transpose(1, 2)) for i, (k, v) in enumerate(zip(*sides))}
        self.least = max(((row.padding or 0) + row.sequence.least for row in self.rows if row.sequence.least), default=0)
        self.close()
        self.is_plain = True

    def decode(self, columns: int, device: torch.device) -> List[List[torch.Tensor]]:
        """What the cache of every layer has of the first @columns columns: [rows, columns, heads, numbers] twice. Padding is 0, and what
        is before the window of a match."""
        sides: List[List[torch.Tensor]] = [[], []]
        for layer in range(len(self.places)):
            s = self.group_of(layer)
            for side, width in zip(sides, (s.group.kind.latent or s.group.kind.head_dim, s.group.kind.head_dim)):
                side.append(torch.zeros((len(self.rows), columns, s.model.n_kv_heads, width), dtype=self.dtype, device=device))
        for i, row in enumerate(self.rows):
            padding = min(row.padding or 0, columns)
            if columns > padding:
                row.sequence.read(0, columns - padding, *([x[i, padding:] for x in side] for side in sides))
        return sides

    # ---- forward passes ----

    def prepare(self, before: int, input_ids: Optional[torch.Tensor], shape: "torch.Size", mask: Optional[torch.Tensor],
                position_ids: Optional[torch.Tensor]) -> None:
        """Plans a pass of a [rows, columns] = @shape piece. Raises ValueError, without a change, if it cannot be done."""
        self.plan, self.pending = None, None
        n_rows, n_columns = shape[0], shape[1]
        if self.rows and len(self.rows) != n_rows:
            raise ValueError(f"the cache has {len(self.rows)} rows and the input {n_rows}: for beams or several results call "
                             "batch_repeat_interleave() first, else reset()")
        rows = self.rows or [self.new_row() for _ in range(n_rows)]
        paddings = self.paddings(rows, mask, before + n_columns)
        if position_ids is not None and position_ids.ndim == 3 and bool((position_ids == position_ids[:1]).all()):
            position_ids = position_ids[0]  # M-RoPE of text: all positions of a token are the same
        if position_ids is not None and position_ids.ndim != 2:
            raise ValueError("a token has several positions (M-RoPE of images or video): only text is supported")
        positions = None if position_ids is None else position_ids.expand(n_rows, -1)
        parts, tokens = [], []
        for i, (row, padding) in enumerate(zip(rows, paddings)):
            first = min(max(0, padding - before), n_columns)
            token = before + first - padding
            self._check_positions(i, None if positions is None else positions[i, first:], token, n_columns - first, padding)
            part = Part(row, i, first, min(row.length - token, n_columns - first))
            if part.n_stored < 0:
                raise ValueError(f"row {i} has {row.length} tokens; expected {token}: a forward pass was interrupted. Call "
                                 "reset()")
            if row.length > token + n_columns - first:
                raise ValueError(f"row {i} was matched beyond this piece of the prompt: pieces after match() of a batch must have "
                                 f"at least {CHUNK} tokens")
            tokens.append(self._tokens(part, token, None if input_ids is None else input_ids[i, first:]))
            parts.append(part)
        for part, padding, new in zip(parts, paddings, tokens):
            part.row.add_tokens(new, part.row.length - part.n_stored)
            part.row.padding = padding if padding < before + n_columns else part.row.padding
        self.rows, self.plan = rows, Plan(before, n_columns, parts)

    @staticmethod
    def paddings(rows: List[Row], mask: Optional[torch.Tensor], n_columns: int) -> List[int]:
        """Columns before the first token of each row. @rows: those that exist; theirs must not change."""
        if mask is None:
            return [row.padding or 0 for row in rows]
        if mask.ndim != 2:
            raise ValueError(f"the attention mask has {mask.ndim} dimensions; expected 2: other masks cannot be expressed")
        if mask.shape[1] != n_columns:
            raise ValueError(f"the attention mask has {mask.shape[1]} columns; expected {n_columns}, those of the cache included")
        real = mask.bool()
        leading = (real.long().cumsum(1) == 0).sum(1)
        if not bool((leading + real.sum(1) == n_columns).all()):
            raise ValueError("the attention mask has 0 behind a 1: padding must be on the left (tokenizer.padding_side = 'left')")
        paddings: List[int] = leading.tolist()
        for i, (row, padding) in enumerate(zip(rows, paddings)):
            if row.padding is not None and row.padding != padding:
                raise ValueError(f"row {i} had {row.padding} columns of padding and now has {padding}")
        return paddings

    @staticmethod
    def _check_positions(i: int, positions: Optional[torch.Tensor], token: int, n: int, padding: int) -> None:
        """Keys are stored as they are before RoPE, for position = index of the token: other positions would be undone wrongly."""
        if positions is None:
            if padding and n:
                raise ValueError(f"row {i} has padding, so position_ids are needed: they are 0 at its first token, as generate() "
                                 "makes them")
        elif positions.tolist() != list(range(token, token + n)):
            raise ValueError(f"row {i} has positions {positions[:3].tolist()}...; expected {token}, {token + 1}, ...: the index of "
                             "each token, counted from the first one that is not padding")

    @staticmethod
    def _tokens(part: Part, token: int, ids: Optional[torch.Tensor]) -> Optional[List[int]]:
        """The ids of a piece of a row that begins at token @token; None: they, or earlier ones, are not known."""
        if part.row.tokens is None or ids is None:
            return None
        new: List[int] = ids.tolist()
        if part.row.tokens[token:token + part.n_stored] != new[:part.n_stored]:
            raise ValueError(f"row {part.number} has other tokens than match() was called with")
        return new

    # ---- sharing ----

    def match(self, texts: List[List[int]], paddings: List[int]) -> int:
        """Starts the rows from published chunks. Returns the number of columns that need not be computed."""
        rows = [self.new_row(CHUNK - 1 if len(texts) > 1 else 0) for _ in texts]  # a row goes on where the shortest one ends
        limits = [len(text) // CHUNK * CHUNK for text in texts]
        columns, ended = 0, False
        while not ended:
            for row, text, padding, limit in zip(rows, texts, paddings, limits):
                row.padding = padding
                self._match_row(row, text, limit)
            columns = min(padding + row.n_matched for row, padding in zip(rows, paddings))
            if not any(row.n_matched for row in rows):
                columns = 0
            limits = [min(row.n_matched, -(-max(0, columns - padding) // CHUNK) * CHUNK) for row, padding in zip(rows, paddings)]
            ended = all(row.n_matched == limit for row, limit in zip(rows, limits))
        for row, text in zip(rows, texts):
            row.tokens = text[:row.n_matched]
        self.rows = rows
        return columns

    def _match_row(self, row: Row, text: List[int], limit: int) -> None:
        """Starts @row from at most @limit tokens, or keeps so many of them."""
        try:
            row.n_matched = row.sequence.shorten(text, limit) if row.sequence.length else row.sequence.match(text[:limit + 1])
        except Error as e:
            self.say("match", f"kvcobrad's pages are not used: {e.strerror}")
            row.n_matched = row.sequence.length

    def commit(self) -> List[int]:
        """Publishes the whole chunks of every row. Returns the number of published tokens of each."""
        published = []
        for i, row in enumerate(self.rows):
            published.append(0)
            if row.tokens is None:
                self.say("embeddings", "a text whose input came as embeddings is not published: its token ids are not known")
                continue
            try:
                published[i] = row.sequence.commit(row.tokens[:row.sequence.length])
            except Error as e:
                if e.errno == errno.EINVAL:
                    raise
                self.say("commit", f"keys and values stay private: {e.strerror}")
        return published

    def select(self, indices: List[int]) -> None:
        """Row i becomes a copy of row @indices[i]. On failure nothing has changed."""
        taken, rows = set(), []
        made: List[Row] = []
        try:
            for i in indices:
                if i in taken:
                    made.append(self.rows[i].fork())
                    rows.append(made[-1])
                else:
                    rows.append(self.rows[i])
                taken.add(i)
        except BaseException:
            for row in made:
                row.sequence.close()
            raise
        for i, row in enumerate(self.rows):
            if i not in taken:
                row.sequence.close()
        self.rows, self.plan = rows, None
