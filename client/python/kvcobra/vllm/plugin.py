"""The plugin that vLLM loads in all of its processes (entry point vllm.general_plugins). It changes nothing unless the
environment has KVCOBRA_ATTENTION=1: then layers on the CPU attend to packed codes (attention.py)."""
from __future__ import annotations

import os

VARIABLE = "KVCOBRA_ATTENTION"


def active() -> bool:
    """Whether attention on codes was asked for."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"the environment variable {VARIABLE} is {value!r}; expected 0 or 1")
    return value == "1"


def register() -> None:
    if not active():
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # vLLM has no choice of backends on the CPU, but lets this one be replaced
    register_backend(AttentionBackendEnum.CPU_ATTN, "kvcobra.vllm.attention.CodesBackend")
