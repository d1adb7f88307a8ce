"""Counters of the connector: names, meanings, and the counts since vLLM last took them."""
from __future__ import annotations

import threading
from typing import Dict

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

    def take(self) -> Dict[str, float]:
        with self._lock:
            values, self._values = self._values, {}
        return values
