"""What the scheduler promised to vLLM: tokens that are leased for a request, from the first ask until it has finished.

vLLM may ask about a waiting request several times, and relies on the first answer. A request that waits holds leases on
pages, which the daemon then cannot evict, so the number of waiting requests with leases is limited: the oldest gives its leases
back, and its next ask looks again.
"""
from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, List, Optional

import kvcobra

from .daemon import Daemon
from .metadata import CHUNK, Text


class Promise:
    """@n_found: tokens that are leased in every shard; a multiple of 64."""

    def __init__(self, text: Text, sequences: List[Any], n_found: int) -> None:
        self.text = text
        self.n_found = n_found
        self._sequences = sequences

    def drop(self) -> None:
        for sequence in self._sequences:
            sequence.close()
        self._sequences = []


class Promises:
    def __init__(self, daemon: Daemon, waiting_max: int) -> None:
        self._daemon = daemon
        self._waiting_max = waiting_max
        self._waiting: "OrderedDict[str, Promise]" = OrderedDict()
        self._scheduled: Dict[str, Promise] = {}

    def get(self, request_id: str) -> Optional[Promise]:
        return self._waiting.get(request_id) or self._scheduled.get(request_id)

    def ask(self, request_id: str, tokens: List[int], salt: bytes) -> Optional[Promise]:
        """Leases what the daemon has of @tokens, except the last. None: there is no daemon."""
        promise = self._find(tokens, salt)
        if promise is not None:
            self._waiting[request_id] = promise
            while len(self._waiting) > self._waiting_max:
                self._waiting.popitem(last=False)[1].drop()
        return promise

    def scheduled(self, request_id: str) -> None:
        """The request has its blocks: it no longer waits."""
        promise = self._waiting.pop(request_id, None)
        if promise is not None:
            self._scheduled[request_id] = promise

    def drop(self, request_id: str) -> None:
        for promises in (self._waiting, self._scheduled):
            promise = promises.pop(request_id, None)
            if promise is not None:
                promise.drop()

    def clear(self) -> None:
        for request_id in [*self._waiting, *self._scheduled]:
            self.drop(request_id)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._scheduled)

    def _find(self, tokens: List[int], salt: bytes) -> Optional[Promise]:
        """Every shard is matched with one table; the request gets what all of them have."""
        models = self._daemon.models()
        if not models:
            return None
        sequences: List[Any] = []
        try:
            text = Text(tuple(tokens), salt, models[0].info.table_digest)
            n_found = len(tokens)
            for model in models:
                sequences.append(self._daemon.sequence(model, salt, text.table))
                n_found = min(n_found, sequences[-1].match(tokens))
        except kvcobra.Error as e:
            for sequence in sequences:
                sequence.close()
            self._daemon.service.lost(e.strerror)
            return None
        if n_found == 0 and not self._daemon.connected():
            for sequence in sequences:
                sequence.close()
            return None
        return Promise(text, sequences, n_found // CHUNK * CHUNK)
