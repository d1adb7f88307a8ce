"""The connector's options: kv_connector_extra_config of vLLM, checked. VLLM.md describes them for users.

What vLLM can say itself is no option here: kv_role decides whether an engine publishes, loads, or both.
"""
from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional

MODEL_ID_DIGITS = 64  # SHA-256 in hexadecimal
THREADS_MAX = 64
WAIT_MS_MAX = 10000  # the library's limit for slower tiers is 8000
LOAD_SECONDS_MIN = 0.1  # a daemon on a busy host answers within this time
THREADS_DEFAULT_MAX = 4  # a load of 1500 tokens does not get faster with more


@dataclass(frozen=True)
class Options:
    socket: Optional[str] = None        # None: the library's default path
    model_id: Optional[str] = None      # None: computed from the model's folder
    threads: int = 1                    # threads that decode a load
    async_load: bool = False            # load between steps, not in the step that needs the tokens
    queue_mib: int = 256                # vectors that wait to be encoded
    waiting_leases: int = 64            # waiting requests whose pages are leased
    wait_ms: int = 1000                 # how long a request waits for kvcobrad at most, and for its disk and cluster
    repeatable: bool = False            # attention on codes: a cold run and a hit agree within rounding

    @property
    def load_seconds(self) -> float:
        """How long a step waits for an answer of kvcobrad about pages that are leased."""
        return max(self.wait_ms / 1000, LOAD_SECONDS_MIN)


def default_threads() -> int:
    return min(THREADS_DEFAULT_MAX, len(os.sched_getaffinity(0)))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; expected a text that is not empty")
    return value


def _model_id(name: str, value: Any) -> str:
    text = _text(name, value).lower()
    if len(text) != MODEL_ID_DIGITS or any(c not in "0123456789abcdef" for c in text):
        raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; expected {MODEL_ID_DIGITS} hexadecimal digits, as "
                         "'kvcobra model-id' prints them")
    return text


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; expected true or false")
    return value


def _number(low: int, high: int) -> Any:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; expected a whole number from {low} to {high}")
        return value

    return check


_CHECKS = {
    "socket": _text,
    "model_id": _model_id,
    "threads": _number(1, THREADS_MAX),
    "async_load": _flag,
    "queue_mib": _number(1, 1 << 20),
    "waiting_leases": _number(1, 1 << 16),
    "wait_ms": _number(0, WAIT_MS_MAX),
    "repeatable": _flag,
}
assert set(_CHECKS) == {field.name for field in fields(Options)}


def parse(extra_config: Mapping[str, Any]) -> Options:
    """Raises ValueError with the name of the option that is unknown or has a wrong value."""
    unknown = sorted(set(extra_config) - set(_CHECKS))
    if unknown:
        raise ValueError(f"kv_connector_extra_config: {', '.join(unknown)}: unknown to KvCobraConnector, which knows "
                         f"{', '.join(_CHECKS)}")
    values = {name: _CHECKS[name](name, value) for name, value in extra_config.items() if value is not None}
    values.setdefault("threads", default_threads())
    return Options(**values)
