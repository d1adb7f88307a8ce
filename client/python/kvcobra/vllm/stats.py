"""Counters in the forms of vLLM: the interval's statistics in the log, and Prometheus."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .counters import COUNTERS

PREFIX = "vllm:kvcobra_"


@dataclass
class Stats(KVConnectorStats):
    """Counts of an interval, by the names of COUNTERS."""

    def reset(self) -> None:
        self.data: Dict[str, Any] = {}

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
