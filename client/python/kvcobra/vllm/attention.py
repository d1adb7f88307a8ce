"""An attention backend of vLLM on the CPU that attends to packed codes instead of vLLM's own cache.

vLLM allocates its cache all the same, and its scheduler counts blocks of it. The blocks are shrunk to the bytes that the codes of
their tokens take, so that VLLM_CPU_KVCACHE_SPACE limits codes; nothing is written there, and untouched memory takes no room.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, List, Optional

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder, AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from .codes import Codes, Part

CONNECTOR = "KvCobraConnector"


def _codes() -> Codes:
    """The sequences of this worker's connector."""
    connector = get_kv_transfer_group() if has_kv_transfer_group() else None
    codes = getattr(connector, "codes", None)
    if not isinstance(codes, Codes):
        raise RuntimeError(f"KVCOBRA_ATTENTION=1 needs {CONNECTOR} as the only connector of vLLM")
    return codes


@functools.lru_cache(maxsize=None)
def _bytes_per_state() -> int:
    """Asks the daemon once, when the first layer is made: vLLM divides its memory by this number."""
    from .connector import bytes_per_state

    config = get_current_vllm_config()
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector != CONNECTOR:
        raise ValueError(f"KVCOBRA_ATTENTION=1 needs {CONNECTOR} in --kv-transfer-config")
    return bytes_per_state(config)


@dataclass
class CodesMetadata:
    """A step. @parts is formed by its first layer: vLLM builds this before the connector gets the names of the requests."""

    first_blocks: List[int]
    row_starts: List[int]
    lengths: List[int]
    parts: Optional[List[Part]] = None


class CodesBuilder(AttentionMetadataBuilder):
    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> CodesMetadata:
        m = common_attn_metadata
        return CodesMetadata(m.block_table_tensor[:m.num_reqs, 0].tolist(), m.query_start_loc[:m.num_reqs + 1].tolist(),
                             m.seq_lens[:m.num_reqs].tolist())


class CodesImpl(AttentionImpl):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, alibi_slopes: Any = None,
                 sliding_window: Optional[int] = None, kv_cache_dtype: str = "auto", logits_soft_cap: Optional[float] = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: Optional[str] = None,
                 sinks: Any = None) -> None:
        unsupported = {"ALiBi": alibi_slopes is not None, "a sliding window": sliding_window is not None,
                       "a soft cap of scores": bool(logits_soft_cap), "learned sinks": sinks is not None,
                       f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
                       "layers that share a cache": kv_sharing_target_layer_name is not None,
                       f"the scale {scale}": abs(scale * head_size ** 0.5 - 1) > 1e-6}
        reasons = [name for name, present in unsupported.items() if present]
        if reasons:
            raise ValueError(f"KVCOBRA_ATTENTION=1: the model has {', '.join(reasons)}, which attention on codes does not "
                             "support")
        self.num_heads, self.num_kv_heads, self.head_size, self.scale = num_heads, num_kv_heads, head_size, scale
        self.kv_cache_dtype = kv_cache_dtype
        self.layer = -1
        _bytes_per_state()

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        """Keys and values are appended to sequences in forward(), and vLLM's cache stays empty."""

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Optional[CodesMetadata], output: torch.Tensor, output_scale: Any = None,
                output_block_scale: Any = None) -> torch.Tensor:
        if attn_metadata is None:  # vLLM warms up
            return output.zero_()
        if self.layer < 0:
            self.layer = extract_layer_index(layer.layer_name)
        codes = _codes()
        if attn_metadata.parts is None:
            attn_metadata.parts = codes.parts(attn_metadata.first_blocks, attn_metadata.row_starts, attn_metadata.lengths)
        codes.attend(self.layer, attn_metadata.parts, query, key, value, output)
        return output


class CodesBackend(CPUAttentionBackend):
    """Replaces CPU_ATTN under its name, which vLLM's CPU platform expects."""

    @staticmethod
    def get_impl_cls() -> Any:
        return CodesImpl

    @staticmethod
    def get_builder_cls() -> Any:
        return CodesBuilder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        return replace(spec, state_content_bytes=_bytes_per_state())
