"""Counters of the connector: names, meanings, and the counts since vLLM last took them."""
from __future__ import annotations

import threading
from typing import Dict, List, Union

COUNTERS = {
    "promised_tokens": "Tokens that the scheduler left out, because kvcobrad has leased their pages to it.",
    "loaded_tokens": "Tokens whose keys and values were loaded from kvcobrad.",
    "load_failures": "Loads that failed. vLLM computes their tokens.",
    "published_tokens": "Tokens of whole chunks that were published, or found published, after they were computed.",
    "publish_cpu_seconds": "Processor seconds of encoding and committing.",
    "publish_failures": "Prompts that kvcobrad did not take, because it is full, draining or absent.",
    "coded_numbers": "Quantised coordinates of keys and values that were published.",
    "saturated_numbers": "Those of coded_numbers that lie beyond the last threshold of their quantiser.",
    "requests_unknown_keys": "Requests with something besides tokens that has no digest here: neither matched nor published.",
    "requests_not_continued": "Requests that began with a prefix of vLLM's own cache that kvcobrad does not have: not published.",
    "requests_given_up": "Requests that were computed because kvcobrad did not answer within the limit, wait_ms.",
    "prompts_queue_full": "Prompts that were not published, because too many vectors waited to be encoded.",
}
GAUGES = {
    "compute_tokens_per_second": "At which the engine computes prompts, by its steps; kvcobrad asks no tier that is slower. 0: not known yet.",
    "connected": "1: kvcobrad was there in the scheduler's last step. 0: nothing is shared.",
    "queue_bytes": "Bytes of keys and values that wait to be encoded, of the worker that has most.",
}
GAUGES_OF_MANY = {"compute_tokens_per_second": max, "connected": min, "queue_bytes": max}  # what stands for several workers, and for the interval of a log line
HISTOGRAMS = {
    "load_seconds": "Seconds that each load took: decoding and storing.",
}
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
Values = Dict[str, Union[float, List[float]]]


class Counters:
    """Counts since the last take(). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Dict[str, float] = {}
        self._gauges: Dict[str, float] = {}
        self._told: Dict[str, float] = {}
        self._samples: Dict[str, List[float]] = {}

    def add(self, name: str, value: float = 1) -> None:
        if name not in COUNTERS:
            raise KeyError(name)
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + value

    def set(self, name: str, value: float) -> None:
        if name not in GAUGES:
            raise KeyError(name)
        with self._lock:
            self._gauges[name] = float(value)

    def observe(self, name: str, value: float) -> None:
        if name not in HISTOGRAMS:
            raise KeyError(name)
        with self._lock:
            self._samples.setdefault(name, []).append(value)

    def take(self) -> Values:
        """Gauges are there when they have changed."""
        with self._lock:
            changed = {name: value for name, value in self._gauges.items() if self._told.get(name) != value}
            self._told.update(changed)
            values: Values = {**self._counts, **changed, **self._samples}
            self._counts, self._samples = {}, {}
        return values
