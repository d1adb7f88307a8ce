"""The sequences of an engine that attends to packed codes: one per request, from its first step to its end.

The step's metadata names the requests; vLLM's attention metadata does not. A request's first block, which no other request has
without vLLM's own prefix cache, leads from one to the other. A sequence must have exactly the tokens that vLLM counts as
computed. One that has others is an error, since attention would answer with another text.
"""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, List, NamedTuple, Optional, Set

import torch

import kvcobra

from .counters import Counters
from .daemon import Daemon
from .metadata import CHUNK, Load, Row, Step

SALT_BYTES = 32
NUMBER_BYTES = 4  # of the largest number type that vLLM may view its cache as


class Kept:
    """A request's sequence. @private: nothing of it is published."""

    def __init__(self, sequence: kvcobra.Sequence, private: bool) -> None:
        self.sequence = sequence
        self.private = private
        self.n_committed = sequence.length


class Part(NamedTuple):
    """The rows of one request in the tensors of a step."""

    sequence: kvcobra.Sequence
    rows: slice


class Codes:
    """@daemon: used by the worker's thread only."""

    def __init__(self, daemon: Daemon, repeatable: bool, counters: Counters) -> None:
        self._daemon = daemon
        self._repeatable = repeatable
        self._counters = counters
        models = daemon.models()
        if not models:
            raise ValueError("KvCobraConnector: attention on codes needs a table: kvcobrad must have one for the model when the "
                             "engine starts")
        self._model = models[0][0]
        self._kept: Dict[str, Kept] = {}
        self._tokens: Dict[str, List[int]] = {}  # by request, as far as they are known here
        self._failed: Set[str] = set()
        self._step: Optional[Step] = None
        self._stopped = False

    def stop(self) -> None:
        """The weights may be others from here on: nothing is published or loaded again."""
        self._stopped = True
        for kept in self._kept.values():
            kept.private = True

    # ---- steps ----

    def bind(self, step: Step) -> None:
        """A step begins. Sequences of requests that ended are closed."""
        self._step = step
        for request_id in step.finished:
            self._drop(request_id)
            self._tokens.pop(request_id, None)
            self._failed.discard(request_id)
        for row in step.batch:
            tokens = self._tokens.setdefault(row.request_id, [])
            if row.at > len(tokens):
                raise RuntimeError(f"KvCobraConnector: request {row.request_id} has tokens from {row.at} on, after {len(tokens)}")
            del tokens[row.at:]
            tokens.extend(row.tokens)

    def load(self, load: Load, block_tokens: int) -> Set[int]:
        """Starts the request from pages of the pool. Returns the blocks whose positions it does not have: none, or all."""
        self._drop(load.request_id)
        self._failed.discard(load.request_id)
        try:
            reason = "the weights may have been changed" if self._stopped else self._match(load)
            if reason is None:
                return set()
        except kvcobra.Error as e:
            reason = e.strerror
        self._counters.add("load_failures")
        self._daemon.service.lost(f"vLLM computes {load.end - load.first} tokens that could not be loaded: {reason}")
        self._failed.add(load.request_id)
        return set(load.blocks[0][load.first // block_tokens:])

    def _match(self, load: Load) -> Optional[str]:
        """None: the request has its sequence."""
        sequence = self._new(load.text.salt, load.text.tables[0])
        n = sequence.match(load.text.tokens[:load.end + 1])
        if n != load.end:
            sequence.close()
            return "kvcobrad no longer has the pages"
        self._kept[load.request_id] = Kept(sequence, False)
        self._counters.add("loaded_tokens", n)
        return None

    def parts(self, first_blocks: List[int], row_starts: List[int], lengths: List[int]) -> List[Part]:
        """The sequences of a step's requests, in the order of its tensors. @row_starts: [requests + 1]; @lengths: tokens of
        each request after the step."""
        if self._step is None:
            raise RuntimeError("KvCobraConnector: vLLM computes attention of requests outside of a step")
        rows = {row.first_block: row for row in self._step.batch}
        parts = []
        for i, block in enumerate(first_blocks):
            row = rows.get(block)
            if row is None:
                raise RuntimeError(f"KvCobraConnector: block {block} is of no request of this step")
            start, end = row_starts[i], row_starts[i + 1]
            n_computed = lengths[i] - (end - start)
            if row.request_id in self._failed and n_computed > 0:
                continue  # until vLLM has seen the failure, it ignores what it computes for this request
            self._failed.discard(row.request_id)
            kept = self._at(row, n_computed)
            parts.append(Part(kept.sequence, slice(start, end)))
        return parts

    def _at(self, row: Row, n_computed: int) -> Kept:
        """The request's sequence with @n_computed tokens. A request that is computed from its start gets a new one."""
        kept = self._kept.get(row.request_id)
        if n_computed == 0 and (kept is None or kept.sequence.length > 0):
            self._drop(row.request_id)
            kept = self._kept[row.request_id] = self._begin(row)
        if kept is not None and kept.sequence.length > n_computed:
            kept.sequence.truncate(n_computed)
        if kept is None or kept.sequence.length != n_computed:
            length = "no sequence" if kept is None else f"a sequence of {kept.sequence.length} tokens"
            raise RuntimeError(f"KvCobraConnector: vLLM counts {n_computed} tokens of request {row.request_id}, which has "
                               f"{length}")
        return kept

    def _begin(self, row: Row) -> Kept:
        if row.salt is not None and not self._stopped:
            try:
                return Kept(self._new(row.salt, row.table), False)
            except kvcobra.Error as e:
                if e.errno not in (errno.ENOENT, errno.ESTALE, errno.ENOTCONN):
                    raise
                self._daemon.service.lost(e.strerror)  # the table is gone: the active one, for this request alone
        return Kept(self._new(os.urandom(SALT_BYTES), None), True)

    def _new(self, salt: bytes, table: Optional[bytes]) -> kvcobra.Sequence:
        return kvcobra.Sequence(self._model, salt=salt, table=table, keys="after", pairs=self._daemon.geometry(0).pairs,
                                repeatable=self._repeatable, counted=True, fetch_ms=0)

    def end_step(self) -> None:
        """Publishes the chunks that became full."""
        step, self._step = self._step, None
        for row in step.batch if step is not None else ():
            kept = self._kept.get(row.request_id)
            if kept is not None and not kept.private and kept.sequence.length // CHUNK > kept.n_committed // CHUNK:
                self._commit(row.request_id, kept)

    # ---- attention ----

    def attend(self, layer: int, parts: List[Part], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               output: torch.Tensor) -> None:
        if self._failed:
            output.zero_()  # rows of requests that are ignored must be numbers all the same
        if not parts:
            return
        sequences = [part.sequence for part in parts]
        keys, values = [key[part.rows] for part in parts], [value[part.rows] for part in parts]
        try:
            kvcobra.append_batch(layer, sequences, keys, values)
        except kvcobra.Error as e:
            if e.errno != errno.ENOSPC or layer != 0:
                raise
            # The arena is full, and nothing changed. A commit moves pages to the pool, or to the heap if the pool is full.
            for request_id, kept in self._kept.items():
                self._commit(request_id, kept)
            kvcobra.append_batch(layer, sequences, keys, values)
        kvcobra.attend_batch(layer, sequences, [query[part.rows] for part in parts], [output[part.rows] for part in parts])

    def _commit(self, request_id: str, kept: Kept) -> None:
        length = kept.sequence.length
        try:
            # tokens of a private sequence do not matter: its salt is random, so that no match finds it
            tokens = [0] * length if kept.private else self._tokens[request_id][:length]
            published = kept.sequence.commit(tokens)
        except kvcobra.Error as e:
            if e.errno == errno.ESTALE:
                raise
            self._counters.add("publish_failures")
            self._daemon.service.lost(e.strerror)
            published = 0
        else:
            self._daemon.connected()
        if not kept.private and published > kept.n_committed // CHUNK * CHUNK:
            self._counters.add("published_tokens", published - kept.n_committed // CHUNK * CHUNK)
        kept.n_committed = length

    def _drop(self, request_id: str) -> None:
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            kept.sequence.close()

    def close(self) -> None:
        self._daemon.close()  # with its sequences, by one message
        self._kept.clear()


def bytes_per_state(model: Any) -> int:
    """Bytes of a page per token, layer and KV head: what vLLM counts for a token, in whole numbers of any type."""
    n_states = CHUNK * int(model.geometry.n_layers) * int(model.n_kv_heads)
    return -(-int(model.info.page_bytes) // (n_states * NUMBER_BYTES)) * NUMBER_BYTES
