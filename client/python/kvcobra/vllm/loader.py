"""Loads: pages of the pool are decoded and stored in vLLM's cache by the attention backend's own method. On a GPU they are decoded
there, on a stream of the loader, which the load waits for.

The method is the one that was there before the connector wrapped it, so that decoded vectors are never recorded. A load that
fails reports its blocks, or between steps its request, and vLLM computes their tokens. Of layers with a window only the blocks that vLLM
has for them are filled. Pages are in memory, since the scheduler leases them: a load asks neither the
disk nor the cluster, and waits for a daemon that does not answer for a limited time, once.
"""
from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence as Items, Set, Tuple

import torch

import kvcobra

from .._groups import LATENT, vectors
from .counters import Counters
from .daemon import Daemon
from .geometry import Blocks, Geometry, units
from .metadata import CHUNK, Load
from .recording import slots

LOG = logging.getLogger("vllm.kvcobra")  # its handlers are vLLM's

PIECE_TOKENS = 2048  # bounds the memory between decoding and storing
STOP_SECONDS = 10.0

# stores what vLLM's cache of a layer has of tokens, [tokens, heads, numbers] twice: (layer, first, second, slots)
Store = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


class Loader:
    """@daemon: used by one thread only. @store: its layers are those of the model. @changed_by: what has changed the engine's weights, whose pages then have other names; or None."""

    def __init__(self, daemon: Daemon, store: Store, blocks: Blocks, dtype: torch.dtype,
                 device: torch.device, counters: Counters, changed_by: Callable[[], Optional[str]] = lambda: None) -> None:
        self._changed_by = changed_by
        self._daemon = daemon
        self._store = store
        self._blocks = blocks
        self._dtype = dtype
        self._device = device
        self._counters = counters
        self._memory: Optional[torch.Tensor] = None

    def load_all(self, loads: List[Load]) -> Set[int]:
        """Returns the blocks that do not have their keys and values. If kvcobrad does not answer about one load, the others do not ask."""
        failed: Set[int] = set()
        gone = False
        for load in loads:
            of_load = self._failed(load, "kvcobrad does not answer") if gone else self.load(load)
            gone = gone or (bool(of_load) and not self._daemon.connected())
            failed |= of_load
        return failed

    def load(self, load: Load) -> Set[int]:
        """Returns the blocks that do not have their keys and values: none, or those of the positions to load."""
        before = time.perf_counter()
        try:
            reason = None if self._changed_by() else self._read(load)
        except kvcobra.Error as e:
            reason = e.strerror
        method = self._changed_by()  # perhaps while this was read
        if method is not None:
            reason = f"{method}() may have changed the weights"
        if reason is not None:
            return self._failed(load, reason)
        self._counters.add("loaded_tokens", load.end - load.first)
        self._counters.observe("load_seconds", time.perf_counter() - before)
        return set()

    def _failed(self, load: Load, reason: str) -> Set[int]:
        self._counters.add("load_failures")
        self._daemon.service.lost(f"vLLM computes {load.end - load.first} tokens that could not be loaded: {reason}")
        return self.unfilled(load)

    def unfilled(self, load: Load) -> Set[int]:
        """The blocks of a load that failed."""
        return {block for blocks, tokens in zip(load.blocks, self._blocks.tokens) for block in blocks[load.first // tokens:]}

    def _read(self, load: Load) -> Optional[str]:
        models = self._daemon.models()
        if not models:
            return "there is no connection to kvcobrad"
        text = load.text
        for unit in units([self._daemon.geometry(group) for group in range(len(models))]):
            g = self._daemon.geometry(unit[0])
            first_needed = self._blocks.needed(load.blocks, g.layers, load.first, load.end)
            end = -(-load.end // CHUNK) * CHUNK
            window = 0 if g.window is None else max(1, end - first_needed + 1)
            with contextlib.ExitStack() as stack:
                sequences = [stack.enter_context(self._daemon.sequence(group, models[group][0], text.salt, text.tables[group], counted=True,
                                                                       fetch_ms=0, window=window)) for group in unit]
                # one token more than the chunks that are needed: a match leaves one
                if any(s.match(text.tokens[:end + 1]) < load.end for s in sequences):
                    return "kvcobrad no longer has the pages"
                for first in range(first_needed, load.end, PIECE_TOKENS):
                    self._piece(unit, sequences, load, first, min(PIECE_TOKENS, load.end - first))
        self._daemon.service.back()
        return None

    def _piece(self, unit: Items[int], sequences: Items[kvcobra.Sequence], load: Load, first: int, n: int) -> None:
        """Decodes positions @first .. @first + @n - 1 of layers into memory as vLLM's cache has them, and stores them. @unit: the groups
        of these layers."""
        groups = [self._daemon.geometry(group) for group in unit]
        g, model = groups[0], sequences[0].model
        shapes = [(g.n_layers, n, model.n_kv_heads, width) for width in (g.head_dim * (2 if g.part == LATENT else 1), groups[-1].head_dim)]
        sizes = [math.prod(shape) for shape in shapes]
        on_gpu = model.client.gpu is not None
        if self._memory is None or self._memory.numel() < sum(sizes):
            self._memory = torch.empty(sum(sizes), dtype=self._dtype, device=self._device if on_gpu else "cpu",
                                       pin_memory=self._device.type == "cuda" and not on_gpu)
        sides = [x.view(shape) for x, shape in zip(self._memory[:sum(sizes)].split(sizes), shapes)]
        for of, sequence in zip(groups, sequences):
            k, v = vectors(of.part, *sides)
            sequence.read_blocks(first, n, list(k), None if v is None else list(v))
            if of.factor != 1.0:
                k *= of.factor
        if self._device.type != "cuda":
            self._store_layers(g, sides, load, first, n)
            return
        stream = self._daemon.follow(self._device)
        with torch.cuda.stream(stream):
            self._store_layers(g, sides, load, first, n)
        stream.synchronize()  # the memory is used again, and vLLM computes with what was stored

    def _store_layers(self, g: Geometry, sides: Items[torch.Tensor], load: Load, first: int, n: int) -> None:
        there: Dict[int, torch.Tensor] = {}
        for i, layer in enumerate(g.layers):
            of_vllm = self._blocks.of_layer[layer]
            if of_vllm not in there:
                there[of_vllm] = slots(load.blocks[of_vllm], self._blocks.tokens[of_vllm], first, n).to(self._device)
            self._store(layer, *(side[i].to(self._device, non_blocking=True) for side in sides), there[of_vllm])

    def close(self) -> None:
        self._memory = None
        self._daemon.close()


class LoadThread:
    """Loads between steps. Every load ends in finished(), also one whose request has ended: vLLM then frees its blocks."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._changed = threading.Condition()
        self._n_open = 0
        self._finished: Set[str] = set()
        self._failed: Set[str] = set()
        self._work: "queue.SimpleQueue[Optional[Load]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvcobra-load", daemon=True)
        self._thread.start()

    def put(self, loads: List[Load]) -> None:
        with self._changed:
            self._n_open += len(loads)
        for load in loads:
            self._work.put(load)

    @property
    def n_open(self) -> int:
        """Loads that have not ended, or whose end was not told yet."""
        with self._changed:
            return self._n_open + len(self._finished)

    def finished(self, wait_seconds: float) -> Tuple[Set[str], Set[str]]:
        """The requests whose loads have ended since the last call, and those of them that do not have their keys and values.
        @wait_seconds: the longest wait for the first one, if a load is running."""
        with self._changed:
            if wait_seconds and self._n_open and not self._finished:
                self._changed.wait(wait_seconds)
            finished, self._finished = self._finished, set()
            failed, self._failed = self._failed, set()
        return finished, failed

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while (load := self._work.get()) is not None:
            failed = self._load(load)
            with self._changed:
                self._n_open -= 1
                self._finished.add(load.request_id)
                self._failed |= {load.request_id} if failed else set()
                self._changed.notify_all()
        self._loader.close()

    def _load(self, load: Load) -> Set[int]:
        try:
            return self._loader.load(load)
        except Exception:  # whatever the backend raises: the request must not wait for ever
            LOG.exception("kvcobra: a load failed, and vLLM computes its tokens")
            return self._loader.unfilled(load)
