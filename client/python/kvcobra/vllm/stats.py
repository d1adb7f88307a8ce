"""Counters in the forms of vLLM: the interval's statistics in the log, and Prometheus."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .counters import BUCKETS, COUNTERS, GAUGES, GAUGES_OF_MANY, HISTOGRAMS

PREFIX = "vllm:kvcobra_"


@dataclass
class Stats(KVConnectorStats):
    """Counts of an interval, by the names in counters.py."""

    def reset(self) -> None:
        self.data: Dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            if name in GAUGES:
                self.data[name] = GAUGES_OF_MANY[name](self.data.get(name, value), value)
            else:  # a sum, or a list of samples
                self.data[name] = self.data[name] + value if name in self.data else value
        return self

    def reduce(self) -> Dict[str, Any]:
        values = {name: sum(self.data[name]) if name in HISTOGRAMS else self.data[name]
                  for name in (*COUNTERS, *GAUGES, *HISTOGRAMS) if name in self.data}
        return {name: round(value, 6) for name, value in values.items()}

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """One metric of Prometheus per counter, gauge and histogram, with vLLM's labels of the engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: Dict[int, Dict[str, Any]] = {engine: {} for engine in per_engine_labelvalues}
        for metric_type, names, extra in ((self._counter_cls, COUNTERS, {}), (self._gauge_cls, GAUGES, {"multiprocess_mode": "mostrecent"}),
                                          (self._histogram_cls, HISTOGRAMS, {"buckets": BUCKETS})):
            for name, help_ in names.items():
                metric = metric_type(name=PREFIX + name, documentation=help_, labelnames=labelnames, **extra)
                for engine, values in per_engine_labelvalues.items():
                    self._metrics[engine][name] = metric.labels(*values)

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        metrics = self._metrics[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in COUNTERS:
                metrics[name].inc(value)
            elif name in GAUGES:
                metrics[name].set(value)
            elif name in HISTOGRAMS:
                for sample in value:
                    metrics[name].observe(sample)
