"""The connector in a worker's process: loads before or between steps, and the recording of prompts during steps."""
from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Sequence as Items, Set

import torch

from .._groups import HEADS
from .codes import Codes
from .counters import Counters
from .daemon import Daemon
from .geometry import Blocks, Geometry, layer_number, units
from .loader import Loader, LoadThread
from .metadata import Step
from .publisher import Publisher
from .recording import Recorder

# Of a step without tokens while a load runs: else vLLM repeats empty steps at full speed
IDLE_WAIT_SECONDS = 0.005


class Worker:
    """@daemon(threads, timeout): a new Daemon. @publishes: this rank owns its shard, and the engine publishes. @load_seconds: how long a step
    waits for kvcobrad. @changed_by: what has changed the weights since this worker was made, or None."""

    def __init__(self, daemon: Callable[[int, Optional[float]], Daemon], groups: Items[Geometry], blocks: Blocks, threads: int, async_load: bool,
                 publishes: bool, queue_bytes: int, counters: Counters, codes: Optional[Codes] = None, load_seconds: Optional[float] = None,
                 changed_by: Callable[[], Optional[str]] = lambda: None) -> None:
        self._new_daemon = daemon
        self._groups = list(groups)
        self._n_layers = len({layer for g in groups for layer in g.layers})
        self._latent = {layer for g in groups for layer in g.layers if g.part != HEADS}
        self._blocks = blocks
        self._threads = threads
        self._async_load = async_load
        self._counters = counters
        self.codes = codes
        self._layers: Dict[int, Any] = {}
        self._stores: Dict[int, Callable[..., None]] = {}
        self._loader: Optional[Loader] = None
        self._load_thread: Optional[LoadThread] = None
        self._step = Step()
        self._failed: Set[int] = set()
        self._failed_requests: Set[str] = set()
        self._load_seconds = load_seconds
        self._changed_by = changed_by
        self._publisher = Publisher(daemon(1, None), queue_bytes, counters) if publishes and codes is None else None
        self._recorders = [Recorder(blocks, i, g.layers, self._reserve, counters, g.part) for i, g in enumerate(groups)]

    # ---- layers ----

    def register(self, layers: Dict[str, Any]) -> None:
        """Wraps the method of each attention layer that stores keys and values. @layers: by vLLM's names."""
        by_index = {layer_number(name): layer for name, layer in layers.items()}
        if sorted(by_index) != list(range(self._n_layers)) or len(layers) != self._n_layers:
            raise ValueError(f"KvCobraConnector: the engine has attention layers {sorted(by_index)}; expected 0 to "
                             f"{self._n_layers - 1}, each once")
        if self.codes is not None:
            return
        for index, layer in by_index.items():
            if not hasattr(layer.impl, "do_kv_cache_update"):
                raise ValueError(f"KvCobraConnector: the attention backend {type(layer.impl).__name__} has no method that only "
                                 "stores keys and values: choose another one with --attention-backend")
        for index, layer in by_index.items():
            self._layers[index] = layer
            self._stores[index] = layer.impl.do_kv_cache_update
        if self._publisher is not None:
            for unit in units(self._groups):
                for place, index in enumerate(self._groups[unit[0]].layers):
                    wrap = self._wrapped_latent if index in self._latent else self._wrapped
                    by_index[index].impl.do_kv_cache_update = wrap([self._recorders[i] for i in unit], place, self._stores[index])
        cache = by_index[0].kv_cache
        dtype = cache.dtype  # no other than the keys' own is accepted
        daemon = self._new_daemon(self._threads, self._load_seconds)
        daemon.models()  # with the table that is active now: a load may need it after another one was activated
        self._loader = Loader(daemon, self._store, self._blocks, dtype, cache.device,
                              self._counters, self._changed_by)
        if self._async_load:
            self._load_thread = LoadThread(self._loader)

    @staticmethod
    def _wrapped(recorders: Items[Recorder], place: int, store: Callable[..., None]) -> Callable[..., None]:
        """@place: of the layer in the recorders' groups."""
        def do_kv_cache_update(layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                               slot_mapping: torch.Tensor) -> None:
            store(layer, key, value, kv_cache, slot_mapping)
            for recorder in recorders:
                if recorder.active:
                    recorder.take(place, key, value, slot_mapping)

        return do_kv_cache_update

    @staticmethod
    def _wrapped_latent(recorders: Items[Recorder], place: int, store: Callable[..., None]) -> Callable[..., None]:
        """The same of a layer with MLA, whose method gets other arguments."""
        def do_kv_cache_update(kv_c_normed: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor,
                               kv_cache_dtype: str, k_scale: torch.Tensor) -> None:
            store(kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale)
            for recorder in recorders:
                if recorder.active:
                    recorder.take(place, kv_c_normed[:, None], k_pe.reshape(len(k_pe), 1, -1), slot_mapping.flatten())

        return do_kv_cache_update

    def _store(self, index: int, first: torch.Tensor, second: torch.Tensor, slots: torch.Tensor) -> None:
        layer = self._layers[index]
        if index not in self._latent:
            self._stores[index](layer, first, second, layer.kv_cache, slots)
        else:
            self._stores[index](first[:, 0], second, layer.kv_cache, slots, layer.kv_cache_dtype, layer._k_scale)

    def _reserve(self, n_numbers: int, like: torch.Tensor) -> Optional[torch.Tensor]:
        assert self._publisher is not None
        return self._publisher.reserve(n_numbers, like)

    # ---- steps ----

    @property
    def changed_by(self) -> Optional[str]:
        return self._changed_by()

    def bind(self, step: Step) -> None:
        """A step begins. vLLM calls load() before its forward pass only if the step needs what is loaded."""
        if self.changed_by:
            self._stop(step)
        self._step = step
        if self.codes is not None:
            self.codes.bind(step)
        if self._publisher is None:
            return
        for request_id in step.finished:
            for recorder in self._recorders:
                recording = recorder.finish(request_id)
                if recording is not None:
                    self._publisher.end(recording)
        for recorder in self._recorders:
            for start in step.starts:
                recorder.start(start.request_id, start.text, start.n_published)
            recorder.expect(step.rows)

    def _stop(self, step: Step) -> None:
        """The weights may be others from here on: nothing that @step and later ones compute is published."""
        step.starts, step.rows = [], []
        if self.codes is not None:
            self.codes.stop()
        if self._publisher is not None:
            for recorder in self._recorders:
                for recording in recorder.stop():
                    self._publisher.end(recording)

    def load(self) -> None:
        loads, self._step.loads = self._step.loads, []
        if not loads:
            return
        if self.codes is not None:
            for load in loads:
                self._failed |= self.codes.load(load, self._blocks.tokens[0])
            return
        if self._load_thread is not None:
            self._load_thread.put(loads)
            return
        assert self._loader is not None
        self._failed |= self._loader.load_all(loads)
        if self._failed and self._publisher is not None:
            for recorder in self._recorders:
                recorder.fail(self._failed)

    def end_step(self) -> None:
        if self.codes is not None:
            self.codes.end_step()
        if self._publisher is None:
            return
        for recorder in self._recorders:
            self._publisher.put(recorder.end())

    def finished_loads(self) -> Set[str]:
        """The requests whose loads between steps have ended, also those that failed_requests() returns."""
        idle = 0.0 if self._step.n_tokens else IDLE_WAIT_SECONDS
        if self._load_thread is None or not self._load_thread.n_open:
            if idle and self._step.idle_seconds:
                time.sleep(self._step.idle_seconds)
            if self._load_thread is None:
                return set()
        finished, self._failed_requests = self._load_thread.finished(idle)
        return finished

    def failed_requests(self) -> Set[str]:
        """Of the last finished_loads(): the requests that do not have their keys and values."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def failed_blocks(self) -> Set[int]:
        """Of loads in steps."""
        failed, self._failed = self._failed, set()
        return failed

    def close(self) -> None:
        if self._load_thread is not None:
            self._load_thread.close()
        elif self._loader is not None:
            self._loader.close()
        if self._publisher is not None:
            self._publisher.close()
        if self.codes is not None:
            self.codes.close()
        self._load_thread, self._loader, self._publisher = None, None, None
        self.codes = None
