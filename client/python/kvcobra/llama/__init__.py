"""llama.cpp with KV-COBRA: llama-cpp-python (Shared), states of sequences (states), slots of llama-server (slots), and a proxy in front
of it (proxy)."""
from __future__ import annotations

from .shared import Shared
from .states import Layout, check, pairs_of, read_state, write_state

__all__ = ["Layout", "Shared", "check", "pairs_of", "read_state", "write_state"]
