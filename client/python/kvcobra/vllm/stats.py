"""Counters of the connector, in the forms of vLLM: the interval's statistics in the log, and Prometheus."""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, List

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "loaded_tokens": "Tokens whose keys and values were loaded from kvcobrad.",
    "load_seconds": "Seconds that loads took: decoding and storing.",
    "load_failures": "Loads that failed. vLLM computes their tokens.",
    "published_tokens": "Tokens of whole chunks that were published, or found published, after they were computed.",
    "publish_cpu_seconds": "Processor seconds of encoding and committing.",
    "publish_failures": "Prompts that kvcobrad did not take, because it is full, draining or absent.",
    "requests_unknown_keys": "Requests with something besides tokens that has no digest here: neither matched nor published.",
    "requests_not_continued": "Requests that began with a prefix of vLLM's own cache that kvcobrad does not have: not published.",
    "prompts_queue_full": "Prompts that were not published, because too many vectors waited to be encoded.",
}
PREFIX = "vllm:kvcobra_"


class Counters:
    """Counts since the last take(). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Dict[str, float] = {}

    def add(self, name: str, value: float = 1) -> None:
        if name not in COUNTERS:
            raise KeyError(name)
        with self._lock:
            self._values[name] = self._values.get(name, 0) + value

    def take(self) -> "Stats | None":
        with self._lock:
            values, self._values = self._values, {}
        return Stats(data=values) if values else None


@dataclass
class Stats(KVConnectorStats):
    """Counts of an interval, by the names of COUNTERS."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> Dict[str, Any]:
        return {name: round(self.data[name], 6) for name in COUNTERS if name in self.data}

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """One Prometheus counter per counter, with vLLM's labels of the engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: Dict[int, Dict[str, Any]] = {engine: {} for engine in per_engine_labelvalues}
        for name, help_ in COUNTERS.items():
            metric = self._counter_cls(name=PREFIX + name, documentation=help_, labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self._counters[engine][name] = metric.labels(*values)

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in COUNTERS:
                self._counters[engine_idx][name].inc(value)
