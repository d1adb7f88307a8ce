"""What kvcobrad has of prompts, asked by a thread of the scheduler's process, so that the scheduler waits for no answer.

The thread makes all calls that may wait: connecting, leasing, giving leases back. Any number of questions run at the same time, each
over all groups of layers and shards (kvc_fetch_start), while the daemon reads its disk or asks other hosts. A question that is not answered within the
limit is given up: its request is computed. What one group has may end before a window of another begins: then that one is asked again, for a
shorter text, until all have the same. Until the daemon has answered it all the same, or the connection is lost, new questions
are given up at once, so that a daemon that hangs costs one wait and not one per request.
"""
from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Sequence as Items, Tuple

import kvcobra

from .daemon import Daemon
from .metadata import CHUNK, Text

LOG = logging.getLogger("vllm.kvcobra")  # its handlers are vLLM's

# The daemon answers with what has arrived when this share of the time is over, before the scheduler gives up.
FETCH_SHARE = 0.8
# With a limit of 0 only pages in memory are looked for, which a daemon on a busy host answers within this time.
ANSWER_SECONDS = 0.1
STOP_SECONDS = 2.0
PAUSE_MS = 500  # an engine that has no further request makes no further step: its last leases go back then


class Promise:
    """@n_found: tokens that are leased in every group of layers and shard; a multiple of 64."""

    def __init__(self, text: Text, sequences: List[Any], n_found: int) -> None:
        self.text = text
        self.n_found = n_found
        self.sequences = sequences


class Lookup:
    """A question. The scheduler's thread reads `promise` when `answered` is true; None: there is nothing to take, and nothing to publish
    with."""

    def __init__(self, tokens: List[int], salt: bytes, now: float) -> None:
        self.tokens = tokens
        self.salt = salt
        self.asked = now
        self.promise: Optional[Promise] = None
        self.dropped = False
        self.given_up = False
        self.answered = False

    def answer(self, promise: Optional[Promise]) -> None:
        self.promise = promise
        self.answered = True


class _Part:
    """A sequence of one group of layers and shard, and its match. @fetch: None: it has ended, and found @n_found tokens."""

    def __init__(self, group: int, model: Any) -> None:
        self.group, self.model = group, model
        self.sequence: Any = None
        self.fetch: Any = None
        self.n_found = 0

    def end(self) -> None:
        if self.fetch is not None:
            self.n_found = self.fetch.result(0)
            self.fetch.close()
            self.fetch = None


class _Running:
    """A question that was sent, with a part per group of layers and shard."""

    def __init__(self, lookup: Lookup, text: Text, parts: List[_Part]) -> None:
        self.lookup = lookup
        self.text = text
        self.parts = parts

    @property
    def fetches(self) -> List[Any]:
        return [part.fetch for part in self.parts if part.fetch is not None]

    @property
    def sequences(self) -> List[Any]:
        return [part.sequence for part in self.parts if part.sequence is not None]

    def done(self) -> bool:
        return all(fetch.done() for fetch in self.fetches)

    def close(self) -> None:
        for sequence in self.sequences:
            sequence.close()


class Lookups:
    """@daemon: used by this thread only from now on. @wait_ms: how long a request waits at most. @windows: by group, of Blocks.window()."""

    def __init__(self, daemon: Daemon, wait_ms: int, windows: Items[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._daemon = daemon
        self._windows = tuple(windows)
        self._fetch_ms = int(wait_ms * FETCH_SHARE)
        self._limit = max(wait_ms / 1000, ANSWER_SECONDS)
        self._clock = clock
        self._lock = threading.Lock()
        self._work: Deque[Tuple[Optional[Lookup], List[Any]]] = deque()
        self._running: List[_Running] = []
        self._busy_since: Optional[float] = None
        self._n_given_up = 0
        self._stopping = False
        self.connected = bool(daemon.connected())
        self.compute_tokens_per_s = 0  # of the engine, set by the scheduler: kvcobrad asks no tier that is slower; 0: not known
        self._ear, self._bell = os.pipe()
        for descriptor in (self._ear, self._bell):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._run, name="kvcobra-lookup", daemon=True)
        self._thread.start()

    # ---- the scheduler's thread ----

    @property
    def silent(self) -> bool:
        """Whether the daemon does not answer."""
        since = self._busy_since
        return self._n_given_up > 0 or (since is not None and self._clock() - since > self._limit)

    def ask(self, tokens: List[int], salt: bytes) -> Lookup:
        """Asks what the daemon has of @tokens, except the last."""
        lookup = Lookup(tokens, salt, self._clock())
        self._post(lookup, [])
        return lookup

    def give_up(self, lookup: Lookup) -> bool:
        """Whether @lookup took too long. It is dropped then."""
        if self._clock() - lookup.asked <= self._limit:
            return False
        with self._lock:
            if not lookup.answered:
                lookup.given_up = True
                self._n_given_up += 1
        self.drop(lookup)
        return True

    def drop(self, lookup: Lookup) -> None:
        """The leases go back to the daemon, now or when the answer is there."""
        with self._lock:
            lookup.dropped = True
            promise, lookup.promise = lookup.promise, None
        if promise is not None:
            self.release(promise)

    def release(self, promise: Promise) -> None:
        sequences, promise.sequences = promise.sequences, []
        self._post(None, sequences)

    def close(self) -> None:
        """Ends the thread, for which it waits for some seconds at most."""
        if self._stopping:
            return
        self._stopping = True
        self._ring()
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():  # else the descriptors stay with it
            os.close(self._ear)
            os.close(self._bell)

    def _post(self, lookup: Optional[Lookup], sequences: List[Any]) -> None:
        self._work.append((lookup, sequences))

    def flush(self) -> None:
        """Wakes the thread, if there is work for it: it then takes the interpreter's lock, which the caller should not need at once."""
        if self._work and not self._stopping:
            self._ring()

    def _ring(self) -> None:
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:  # it rings already
            pass

    # ---- the thread ----

    def _run(self) -> None:
        while not self._stopping:
            self._wait()
            self._busy_since = self._clock()
            try:
                self._turn()
            except Exception:  # the next prompts are looked up all the same
                LOG.exception("kvcobra: a prompt could not be looked up")
            self._busy_since = None
        self._daemon.close()  # with its sequences and fetches, by one message
        for running in self._running:
            running.close()
        while self._work:
            self._close(self._work.popleft()[1])

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        for running in self._running:
            for fetch in running.fetches:
                poll.register(fetch.fileno(), select.POLLIN)
        poll.poll(PAUSE_MS)
        try:
            os.read(self._ear, 4096)
        except BlockingIOError:
            pass

    def _turn(self) -> None:
        released: List[Any] = []
        while self._work:
            lookup, sequences = self._work.popleft()
            released += sequences
            if lookup is not None:
                self._start(lookup)
        for running in list(self._running):
            if running.done():
                self._running.remove(running)
                self._end(running)
        self._close(released)  # last: giving back may wait for the daemon
        self.connected = bool(self._daemon.connected())

    @staticmethod
    def _close(sequences: List[Any]) -> None:
        for sequence in sequences:
            sequence.close()

    def _start(self, lookup: Lookup) -> None:
        models = [] if lookup.dropped else self._daemon.models()
        if not models:
            self._answer(lookup, None)
            return
        running: Optional[_Running] = None
        try:
            tables = tuple(shards[0].info.table_digest for shards in models)
            running = _Running(lookup, Text(tuple(lookup.tokens), lookup.salt, tables),
                               [_Part(group, model) for group, shards in enumerate(models) for model in shards])
            self._match(running, running.parts, lookup.tokens)
        except Exception as e:
            self._fail(lookup, running, e)
            return
        self._running.append(running)

    def _match(self, running: _Running, parts: List[_Part], tokens: List[int]) -> None:
        """Starts matches of @tokens for @parts. Every shard of a group is matched with one table."""
        for part in parts:
            again = part.sequence is not None  # it counted its hits
            if again:
                part.sequence.close()
                part.sequence = None
            part.sequence = self._daemon.sequence(part.group, part.model, running.lookup.salt, running.text.tables[part.group], counted=again,
                                                  fetch_ms=self._fetch_ms, compute_tokens_per_s=self.compute_tokens_per_s,
                                                  window=self._windows[part.group])
            part.fetch = part.sequence.fetch(tokens)

    def _end(self, running: _Running) -> None:
        """The request gets what all groups and shards have."""
        lookup = running.lookup
        try:
            for part in running.parts:
                part.end()
            n_found = min(part.n_found for part in running.parts)
            other_windows = [part for part in running.parts if part.n_found > n_found > 0 and self._windows[part.group]]
            if other_windows and not lookup.dropped:
                self._match(running, other_windows, lookup.tokens[:n_found + 1])  # a match leaves one
                self._running.append(running)
                return
        except Exception as e:
            self._fail(lookup, running, e)
            return
        if n_found == 0 and not self._daemon.connected():
            running.close()
            self._answer(lookup, None)
        else:
            self._answer(lookup, Promise(running.text, running.sequences, n_found // CHUNK * CHUNK))

    def _fail(self, lookup: Lookup, running: Optional[_Running], e: Exception) -> None:
        if running is not None:
            running.close()
        self._answer(lookup, None)
        if not isinstance(e, kvcobra.Error):
            raise e
        self._daemon.service.lost(e.strerror)

    def _answer(self, lookup: Lookup, promise: Optional[Promise]) -> None:
        with self._lock:
            self._n_given_up -= lookup.given_up
            dropped = lookup.dropped
            lookup.answer(None if dropped else promise)
        if dropped and promise is not None:
            self._close(promise.sequences)
