"""vLLM with KV-COBRA: KvCobraConnector shares prefixes between processes; attention.py attends to packed codes on the CPU.

Nothing of vLLM is imported before it is used: vLLM loads the plugin of this package in all of its processes.
"""
from __future__ import annotations

from typing import Any

__all__ = ["KvCobraConnector"]


def __getattr__(name: str) -> Any:
    if name == "KvCobraConnector":
        from .connector import KvCobraConnector
        return KvCobraConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
