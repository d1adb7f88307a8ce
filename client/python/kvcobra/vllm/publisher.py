"""The thread of a worker that encodes and commits recorded prompts, behind a queue that is limited in bytes.

Encoding needs no interpreter lock, so that the engine's steps go on. A prompt that does not fit the queue is not published: an
engine never waits for its publisher. On a GPU the queue lies in its memory, and the thread encodes there on a stream of its own,
which begins when the step's copies have ended. With codes that no kernel knows the library copies and encodes on the host.
"""
from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from typing import Dict, List, Optional, Tuple

import torch

import kvcobra

from .counters import Counters
from .daemon import Daemon
from .recording import Copy, Recording

LOG = logging.getLogger("vllm.kvcobra")  # its handlers are vLLM's

PIECE_TOKENS = 1024  # tokens between two commits: a client's arena bounds what is encoded and not committed
STOP_SECONDS = 10.0


class Publisher:
    """@daemon: used by this thread only."""

    def __init__(self, daemon: Daemon, queue_bytes: int, counters: Counters) -> None:
        self._daemon = daemon
        self._queue_bytes = queue_bytes
        self._counters = counters
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._spare: Optional[torch.Tensor] = None
        self._work: "queue.SimpleQueue[Optional[Tuple[Optional[Copy], Optional[Recording]]]]" = queue.SimpleQueue()
        self._coded: Dict[bytes, List[int]] = {}
        self._sequences: Dict[int, Tuple[Recording, kvcobra.Sequence]] = {}
        self._thread = threading.Thread(target=self._run, name="kvcobra-publish", daemon=True)
        self._thread.start()

    # ---- the engine's thread ----

    def reserve(self, n_numbers: int, like: torch.Tensor) -> Optional[torch.Tensor]:
        """Memory for @n_numbers where @like is, or None if the queue is full."""
        n_bytes = n_numbers * like.element_size()
        with self._lock:
            if self._used_bytes + n_bytes > self._queue_bytes:
                return None
            spare, self._spare = self._spare, None
            if spare is None or spare.dtype != like.dtype or spare.numel() < n_numbers:
                spare = None
                self._used_bytes += n_bytes
            else:
                self._used_bytes += spare.numel() * spare.element_size()
            self._counters.set("queue_bytes", self._used_bytes)
        if spare is None:
            try:
                spare = torch.empty(n_numbers, dtype=like.dtype, device=like.device)
            except torch.OutOfMemoryError:  # vLLM left too little of the GPU
                with self._lock:
                    self._used_bytes -= n_bytes
                return None
        return spare

    def put(self, copies: List[Copy]) -> None:
        """Takes the copies of a step, those of a group behind those of the groups before it."""
        ready = None
        if copies and copies[0].memory.device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(copies[0].memory.device))
        for copy in copies:
            if copy.whole:
                copy.ready = ready
                self._work.put((copy, None))
            else:
                self._give_back(copy)

    def end(self, recording: Recording) -> None:
        """No further rows of @recording follow."""
        self._work.put((None, recording))

    def close(self) -> None:
        """Publishes what is queued, for some seconds at most, and ends the thread."""
        self._work.put(None)
        self._thread.join(STOP_SECONDS)

    # ---- the publisher's thread ----

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            copy, recording = item
            if copy is None:
                assert recording is not None
                self._forget(recording)
                continue
            before = time.thread_time()
            try:
                self._publish(copy)
            except Exception:  # the next prompts are published all the same
                LOG.exception("kvcobra: a prompt could not be published")
                copy.recording.dropped = True
                self._counters.add("publish_failures")
                self._forget(copy.recording)
            finally:
                self._release(copy)
                self._counters.add("publish_cpu_seconds", time.thread_time() - before)
        self._daemon.close()  # with its sequences, by one message
        self._sequences.clear()

    def _release(self, copy: Copy) -> None:
        if copy.ready is not None:
            self._daemon.follow(copy.memory.device).synchronize()  # encoding has read the memory
        self._give_back(copy)

    def _give_back(self, copy: Copy) -> None:
        with self._lock:
            self._used_bytes -= copy.memory.numel() * copy.memory.element_size()
            self._spare = copy.memory  # a copy to pages that the process has is cheaper
            self._counters.set("queue_bytes", self._used_bytes)

    def _forget(self, recording: Recording) -> None:
        known = self._sequences.pop(id(recording), None)
        if known is not None:
            known[1].close()

    def _publish(self, copy: Copy) -> None:
        recording = copy.recording
        if copy.ready is not None:
            copy.ready.synchronize()
        if copy.found is not None and not bool(copy.found):
            recording.dropped = True
        try:
            sequence = self._sequence(copy)
            if sequence is not None:
                self._append(sequence, copy)
                published = sequence.commit(recording.text.tokens[:copy.first + copy.n])
                self._count(recording, sequence, published)
        except kvcobra.Error as e:
            recording.dropped = True
            self._counters.add("publish_failures")
            self._daemon.service.lost(e.strerror)
        if recording.dropped or copy.first + copy.n == len(recording.text.tokens):
            self._forget(recording)

    def _sequence(self, copy: Copy) -> Optional[kvcobra.Sequence]:
        """The sequence of the prompt, which ends where @copy begins. None: the prompt is not published."""
        recording = copy.recording
        if recording.dropped:
            return None
        known = self._sequences.get(id(recording))
        if known is not None:
            return known[1]
        models = self._daemon.models()
        if not models:
            recording.dropped = True
            self._counters.add("publish_failures")
            return None
        text, group = recording.text, recording.group
        sequence = self._daemon.sequence(group, models[group][0], text.salt, text.tables[group], counted=True,
                                         window=self._daemon.geometry(group).window or 0)
        self._sequences[id(recording)] = (recording, sequence)
        if recording.n_published and sequence.match(text.tokens[:recording.n_published + 1]) != recording.n_published:
            # the scheduler has leases on these pages; without them the daemon was restarted
            recording.dropped = True
            self._counters.add("publish_failures")
            return None
        return sequence

    def _append(self, sequence: kvcobra.Sequence, copy: Copy) -> None:
        tokens = copy.recording.text.tokens
        for at in range(0, copy.n, PIECE_TOKENS):
            end = min(at + PIECE_TOKENS, copy.n)
            if at:
                sequence.commit(tokens[:copy.first + at])
            try:
                self._append_layers(sequence, copy, at, end)
            except kvcobra.Error as e:
                if e.errno != errno.ENOSPC:  # the arena is full, and no layer was appended
                    raise
                sequence.commit(tokens[:copy.first + at])
                self._append_layers(sequence, copy, at, end)

    def _append_layers(self, sequence: kvcobra.Sequence, copy: Copy, at: int, end: int) -> None:
        for layer in range(copy.n_layers):
            vectors = copy.vectors[layer, :, at:end]
            if sequence.client.gpu is None:
                vectors = vectors.cpu()
            factor = self._daemon.geometry(copy.recording.group).factor  # pages have keys without it
            sequence.append(layer, vectors[0] if factor == 1.0 else vectors[0] / factor, vectors[1])

    def _count(self, recording: Recording, sequence: kvcobra.Sequence, published: int) -> None:
        n = published - recording.n_published
        if n > 0:
            if recording.group == self._daemon.n_groups - 1:  # the other groups have them by now
                self._counters.add("published_tokens", n)
            recording.n_published = published
            # the library counts all that this client encoded with the table
            now = [sum(sequence.usage.coded), sum(sequence.usage.saturated)]
            table = recording.text.tables[recording.group]
            before = self._coded.get(table, [0, 0])
            self._coded[table] = now
            self._counters.add("coded_numbers", now[0] - before[0])
            self._counters.add("saturated_numbers", now[1] - before[1])
        if self._daemon.connected():
            self._daemon.service.back()
