"""kvcobrad as one side of the connector sees it: a client with one model per group of layers and shard, or nothing while there is no
daemon.

Nothing here raises because of the daemon: an engine works without it. The log gets one line when the daemon's service is
lost, with the reason, and one when it is back. Used by one thread; every thread has a Daemon of its own.
"""
from __future__ import annotations

import errno
import threading
import time
from typing import Any, Callable, List, Optional, Sequence as Items, Set, Tuple

import kvcobra
from kvcobra._client import socket_path
from kvcobra._gpus import host_codec
from kvcobra._groups import HEADS, group_digest, numbers
from kvcobra._model import exact_form

from .geometry import Geometry, Shard
from .metadata import CHUNK

RETRY_SECONDS = 10.0
LINE_SECONDS = 60.0
# The library's answers about a GPU that it cannot use: then it encodes and decodes on the host.
NO_GPU = (errno.EOPNOTSUPP, errno.ENODEV)
# The daemon's answers about a geometry. The engine cannot use this model's tables at all.
REFUSALS = (errno.EINVAL, errno.EBADMSG, errno.EPROTO)


class Refused(ValueError):
    """The daemon's table is for another geometry than the engine's model."""


class Service:
    """Whether prefixes are shared, in the log of a process: one line per loss and one per return. A pool that is full takes
    some prompts and refuses others, so that lines have a distance in time. Any thread."""

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._lost = False
        self._logged = False
        self._next_line = -1.0
        self._noted: Set[str] = set()
        self._ended = False

    def lost(self, reason: Any) -> None:
        with self._lock:
            if not self._lost and not self._ended and self._clock() >= self._next_line:
                self._log.warning("kvcobra: the engine goes on without shared prefixes: %s", reason)
                self._next_line = self._clock() + LINE_SECONDS
                self._logged = True
            self._lost = True

    def note(self, sentence: str) -> None:
        """A line that is written once in a process."""
        with self._lock:
            if sentence not in self._noted:
                self._noted.add(sentence)
                self._log.info("kvcobra: %s", sentence)

    def end(self, reason: str) -> None:
        """Nothing is shared again. This line is the last one."""
        with self._lock:
            if not self._ended:
                self._log.warning("kvcobra: the engine goes on without shared prefixes: %s; start the engine again to share prefixes again",
                                  reason)
            self._ended = True

    def back(self) -> None:
        with self._lock:
            if self._lost and self._logged and not self._ended:
                self._log.info("kvcobra: prefixes are shared again")
            self._lost, self._logged = False, False


class Daemon:
    """@groups: the groups of layers of the model @model_id, and the ranges of KV heads to open of each; @n_positions: the longest
    sequence of the engine. @gpu: the torch.device that has the
    engine's cache, if it is a CUDA device: pages are encoded and decoded there if the library can, on the host if not. @timeout: seconds
    that a call may wait for kvcobrad; None: the library's default. @exact: the number type of the engine's cache, whose bytes are shared while
    the daemon has no table; None: not."""

    def __init__(self, socket: Optional[str], model_id: str, groups: Items[Tuple[Geometry, Items[Shard]]], n_positions: int,
                 service: Service, threads: int = 1, clock: Callable[[], float] = time.monotonic, gpu: Any = None,
                 timeout: Optional[float] = None, exact: Any = None) -> None:
        self._socket = socket
        self._model_id = model_id
        self._groups = list(groups)
        self._n_positions = n_positions
        self._threads = threads
        self._timeout = timeout
        self._clock = clock
        self.service = service
        self._gpu = gpu
        self._exact = exact
        self._stream: Any = None
        self._client: Optional[kvcobra.Client] = None
        self._models: List[List[kvcobra.Model]] = []
        self._next_attempt = 0.0
        self._refused = False

    def geometry(self, group: int) -> Geometry:
        return self._groups[group][0]

    @property
    def n_groups(self) -> int:
        return len(self._groups)

    def models(self) -> List[List[kvcobra.Model]]:
        """By group and shard, or an empty list while the daemon cannot be used."""
        if self._models or self._refused or self._clock() < self._next_attempt:
            return self._models
        try:
            self.open()
        except Refused as e:  # a daemon that appears later cannot stop an engine that runs
            self._refused = True
            self.service.lost(e)
        return self._models

    def open(self) -> bool:
        """Connects and opens the models. False: not now. Raises Refused if it never will."""
        try:
            if self._client is None:
                self._client = self._connect()
            self._models = [self._open_group(self._client, geometry, shards) for geometry, shards in self._groups]
        except kvcobra.Error as e:
            self._models = []
            if e.errno in REFUSALS and self._client is not None:
                raise Refused(f"a table of model {self._model_id} does not fit this engine: {e.strerror}") from None
            if e.errno == errno.ENOENT and self._client is None and e.strerror.find("could not be loaded") >= 0:
                raise Refused(e.strerror) from None
            self._next_attempt = self._clock() + RETRY_SECONDS
            self.service.lost(f"model {self._model_id[:12]}, {socket_path(self._socket)}: {e.strerror}")
            return False
        self.service.back()
        return True

    def _open_group(self, client: kvcobra.Client, g: Geometry, shards: Items[Shard]) -> List[kvcobra.Model]:
        digest = group_digest(bytes.fromhex(self._model_id), g.name, len(self._groups))
        try:
            return [kvcobra.Model(client, digest, g.of_table, n_positions=self._n_positions, shard=(shard.first, shard.n),
                                  exact=self._exact_form(g)) for shard in shards]
        except kvcobra.Error as e:
            if len(self._groups) == 1:
                raise
            raise kvcobra.Error(e.errno, f"layers {numbers(g.layers)} (group {g.name}): {e.strerror}") from None

    def _exact_form(self, g: Geometry) -> int:
        """Of the cache of layers of @g. A factor of the rotated keys, and the halves of MLA, are no bytes of the cache: 0."""
        return exact_form(self._exact, "after", g.pairs) if self._exact is not None and g.factor == 1.0 and g.part == HEADS else 0

    def describe(self) -> None:
        """A line about what is shared, and through which daemon."""
        try:
            assert self._client is not None
            infos = [shards[0].info for shards in self._models]
            bytes_of_chunk = sum(model.info.page_bytes for shards in self._models for model in shards)
            n_tokens = self._client.quota_bytes() // bytes_of_chunk * CHUNK
        except (kvcobra.Error, ValueError) as e:
            self.service.lost(getattr(e, "strerror", e))
            return
        tables = " and ".join(f"table {info.table_digest.hex()[:12]}, {info.bpd_code:.2f} bits per number" for info in infos)
        if any(info.exact for info in infos):
            tables += " (the engine's own bytes, since no table is active: one of 3 bits per number needs a fifth of them or less)"
        self.service.note(f"prefixes are shared through {socket_path(self._socket)}: model {self._model_id[:12]}, {tables}, "
                          f"room for {n_tokens} tokens")

    def _connect(self) -> kvcobra.Client:
        if self._gpu is not None:
            try:
                return kvcobra.Client(self._socket, threads=self._threads, gpu=self._gpu, stream=self.follow(self._gpu),
                                      timeout=self._timeout)
            except kvcobra.Error as e:
                if e.errno not in NO_GPU:
                    raise
                self.service.note(f"keys and values are encoded and decoded on the host: {e.strerror}")
                self._gpu = None
        return kvcobra.Client(self._socket, threads=self._threads, timeout=self._timeout)

    def follow(self, device: Any) -> Any:
        """The stream of @device that this client's work is queued on: one of its own."""
        import torch
        if self._stream is None:
            torch.cuda.set_device(device)  # of this thread
            self._stream = torch.cuda.Stream(device)
        return self._stream

    def connected(self) -> bool:
        """Whether the daemon is there now. The library connects again by itself; its calls find nothing meanwhile."""
        if self._client is None or not self._models:
            return False
        if not self._client.info.connected:
            self.service.lost("the connection to kvcobrad was lost")
            return False
        self.service.back()
        return True

    def sequence(self, group: int, model: kvcobra.Model, salt: bytes, table: bytes, counted: bool = False,
                 fetch_ms: Optional[int] = None, compute_tokens_per_s: int = 0, window: int = 0) -> kvcobra.Sequence:
        """A sequence of an engine that keeps keys after RoPE and an exact cache of its own. @model: of @group. @counted: the scheduler
        counted the hits of the request. @fetch_ms: how long its match waits for slower tiers. @compute_tokens_per_s: of the engine; 0:
        unknown. @window: of the last tokens, whose pages its match needs; 0: of all."""
        slower = host_codec(model)
        if slower is not None:
            self.service.note(slower)
        return kvcobra.Sequence(model, salt=salt, table=table, keys="after", pairs=self.geometry(group).pairs, publish_all=True, counted=counted,
                                fetch_ms=fetch_ms, compute_tokens_per_s=compute_tokens_per_s, window=window)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._models = None, []
