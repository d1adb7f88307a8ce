"""llama.cpp with KV-COBRA: states of sequences (states), slots of llama-server (slots), and a proxy in front of it (proxy)."""
from __future__ import annotations

from .states import Layout, check, pairs_of, read_state, write_state

__all__ = ["Layout", "check", "pairs_of", "read_state", "write_state"]
