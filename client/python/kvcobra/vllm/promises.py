"""What the scheduler promised to vLLM: tokens that are leased for a request, from their answer until it has finished.

vLLM may ask about a waiting request several times, and relies on the first answer. A request that waits holds leases on
pages, which the daemon then cannot evict, so the number of waiting requests with leases is limited: the oldest gives its leases
back, and its next ask looks again.
"""
from __future__ import annotations

from collections import OrderedDict
from typing import Dict, List, Optional, Set, Tuple

from .counters import Counters
from .lookups import Lookup, Lookups, Promise

UNKNOWN: Tuple[bool, Optional[Promise]] = (False, None)
NOTHING: Tuple[bool, Optional[Promise]] = (True, None)


class Promises:
    def __init__(self, lookups: Lookups, waiting_max: int, counters: Counters) -> None:
        self._lookups = lookups
        self._waiting_max = waiting_max
        self._counters = counters
        self._waiting: "OrderedDict[str, Lookup]" = OrderedDict()
        self._scheduled: Dict[str, Promise] = {}
        self._given_up: Set[str] = set()

    def get(self, request_id: str) -> Optional[Promise]:
        waiting = self._waiting.get(request_id)
        return self._scheduled.get(request_id) if waiting is None else waiting.promise

    def begin(self, request_id: str, tokens: List[int], salt: bytes) -> None:
        """The request has arrived and will be asked about, if its turn comes: asks now if no other one must wait for that."""
        if len(self._waiting) < self._waiting_max and request_id not in self._waiting and not self._lookups.silent:
            self._waiting[request_id] = self._lookups.ask(tokens, salt)

    def ask(self, request_id: str, tokens: List[int], salt: bytes) -> Tuple[bool, Optional[Promise]]:
        """What the daemon has of @tokens, except the last. (False, None): it is not known yet; (True, None): the
        daemon is not there, or did not answer within the limit."""
        if request_id in self._given_up:
            return NOTHING
        if request_id in self._scheduled:
            return True, self._scheduled[request_id]
        lookup = self._waiting.get(request_id)
        if lookup is None:
            if self._lookups.silent:
                return NOTHING
            if not self._make_room():
                return UNKNOWN
            lookup = self._waiting[request_id] = self._lookups.ask(tokens, salt)
        if not lookup.answered:
            if not self._lookups.give_up(lookup):
                return UNKNOWN
            self._counters.add("requests_given_up")
            self._given_up.add(request_id)
        if lookup.promise is None:
            del self._waiting[request_id]
            return NOTHING
        return True, lookup.promise

    def _make_room(self) -> bool:
        """False: all waiting requests wait for their answers, so that none can give leases back."""
        while len(self._waiting) >= self._waiting_max:
            oldest = next((request_id for request_id, lookup in self._waiting.items() if lookup.answered), None)
            if oldest is None:
                return False
            self._lookups.drop(self._waiting.pop(oldest))
        return True

    def scheduled(self, request_id: str) -> None:
        """The request has its blocks: it no longer waits."""
        lookup = self._waiting.pop(request_id, None)
        if lookup is None:
            return
        if lookup.promise is None:  # vLLM computes it, whatever the answer will be
            self._lookups.drop(lookup)
        else:
            self._scheduled[request_id] = lookup.promise

    def failed(self, request_id: str) -> None:
        """The request could not be loaded: it is computed, however often vLLM asks about it."""
        self.drop(request_id)
        self._given_up.add(request_id)

    def drop(self, request_id: str) -> None:
        self._given_up.discard(request_id)
        lookup = self._waiting.pop(request_id, None)
        if lookup is not None:
            self._lookups.drop(lookup)
        promise = self._scheduled.pop(request_id, None)
        if promise is not None:
            self._lookups.release(promise)

    def clear(self) -> None:
        for request_id in [*self._waiting, *self._scheduled]:
            self.drop(request_id)

    @property
    def n_unknown(self) -> int:
        """Waiting requests without an answer."""
        return sum(not lookup.answered for lookup in self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting) + len(self._scheduled)
