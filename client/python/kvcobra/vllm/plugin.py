"""The plugin that vLLM loads in all of its processes (entry point vllm.general_plugins, name kvcobra). It makes the connector known by
its name, without importing it, and with KVCOBRA_ATTENTION=1 in the environment lets layers on the CPU attend to packed codes
(attention.py)."""
from __future__ import annotations

import logging
import os

VARIABLE = "KVCOBRA_ATTENTION"
CONNECTOR = "KvCobraConnector"
LOG = logging.getLogger("vllm.kvcobra")  # its handlers are vLLM's


def active() -> bool:
    """Whether attention on codes was asked for."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"the environment variable {VARIABLE} is {value!r}; expected 0 or 1")
    return value == "1"


def register() -> None:
    """Any number of times. A vLLM that this package does not fit gets a line, and starts."""
    try:
        _register_connector()
    except Exception as e:  # of a version of vLLM without this interface
        LOG.warning("kvcobra: this vLLM takes no connector by its name (%s: %s): add \"kv_connector_module_path\": \"kvcobra.vllm\"",
                    type(e).__name__, e)
    if active():
        _register_attention()


def _register_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, "kvcobra.vllm.connector", CONNECTOR)
    except ValueError:  # it is registered
        pass


def _register_attention() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # vLLM has no choice of backends on the CPU, but lets this one be replaced
    register_backend(AttentionBackendEnum.CPU_ATTN, "kvcobra.vllm.attention.CodesBackend")
