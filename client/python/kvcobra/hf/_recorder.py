"""What a transformers model computes, layer by layer, for kvcobra.calibrate().

The attention function of the model is replaced for the time of a recording: it sees queries and keys after RoPE and values of
every accepted model, whatever the modules are called. The library rotates keys and queries back.
"""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from .._alloc import Statistics
from .._groups import numbers
from ._geometry import find_decoder, model_group, model_proof

NAME = "kvcobra_record"
TAG = "_kvcobra_recorder"  # attribute of the attention modules during a recording


def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
              scaling: Optional[float] = None, dropout: float = 0.0, **kwargs: Any) -> Tuple[torch.Tensor, None]:
    """@query, @key, @value: [1, heads, tokens, head_dim]."""
    recorder = getattr(module, TAG, None)
    if recorder is not None:
        recorder.take(module.layer_idx, query, key, value)
    result: Tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                                               scaling=scaling, **kwargs)
    return result


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class Recorder:
    """Hands what @model computes to statistics. Raises ValueError, with the reason, if the model does not fit.

    metric: "output" or "mse"; the latter needs no queries and no residual stream.
    """

    def __init__(self, model: Any, metric: str) -> None:
        group = model_group(model)
        self.geometry, self.kind = group.geometry, group.kind
        self._model, self._decoder = model, find_decoder(model)
        self._wants_output = metric == "output"
        self._statistics: Optional[Statistics] = None
        self._taken: Optional[Tuple[torch.Tensor, ...]] = None
        self._document, self._next_layer = 0, 0
        self._progress: Callable[[float], None] = lambda share: None
        if self._wants_output:
            self._refuse()

    def _refuse(self) -> None:
        other = [i for i in range(self.geometry.n_layers) if i not in model_proof(self._model).plain]
        if other:
            raise ValueError(f"layers {numbers(other)} of the model change the output of attention before it is added to the residual "
                             "stream, or add it in another place, which metric 'output' does not describe: use metric='mse'")
        for i, layer in enumerate(self._decoder.layers):
            weight = getattr(layer.self_attn.o_proj, "weight", None)
            if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.ndim != 2:
                raise ValueError(f"the output projection of layer {i} is not a plain matrix (is the model quantised?): load the "
                                 "original weights, or use metric='mse'")

    @contextlib.contextmanager
    def recording(self, statistics: Statistics) -> Iterator[None]:
        """Inside, run() adds windows to @statistics. The model is as before afterwards."""
        model, config = self._model, self._decoder.config
        before, training = config._attn_implementation, model.training
        hooks: List[Any] = []
        tagged = [module for module in self._decoder.modules() if hasattr(module, "layer_idx")]
        self._statistics = statistics
        try:
            model.eval()
            model.set_attn_implementation(NAME)
            for module in tagged:
                setattr(module, TAG, self)
            for i, layer in enumerate(self._decoder.layers if self._wants_output else ()):
                hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(self._make_hook(i)))
                scale = float(getattr(layer, "residual_multiplier", 1.0))
                weight = layer.self_attn.o_proj.weight.detach()
                statistics.set_output_projection(i, weight if scale == 1.0 else weight.float() * scale)
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module in tagged:
                if hasattr(module, TAG):
                    delattr(module, TAG)
            model.set_attn_implementation(before)
            model.train(training)
            self._statistics, self._taken = None, None

    def run(self, document: int, tokens: List[int], progress: Callable[[float], None]) -> None:
        """Adds one window. @progress gets the share of it that is done."""
        self._document, self._next_layer, self._progress = document, 0, progress
        with torch.no_grad():
            self._decoder(input_ids=torch.tensor([tokens]), use_cache=False)
        if self._next_layer != self.geometry.n_layers:
            raise ValueError(f"the model called the attention of {self._next_layer} layers, but has {self.geometry.n_layers}")

    def take(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Called by the attention of a layer."""
        if self.kind.factor != 1.0:  # YaRN: the geometry's scale has it
            query, key = query / self.kind.factor, key / self.kind.factor
        rows = (query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
        if self._wants_output:
            self._taken = rows
        else:
            self._add(layer, rows, None)

    def _make_hook(self, layer: int) -> Callable[[Any, Tuple[Any, ...]], None]:
        def hook(module: Any, arguments: Tuple[Any, ...]) -> None:
            if self._taken is None:
                raise ValueError(f"layer {layer} has no attention of its own: the model does not fit")
            rows, self._taken = self._taken, None
            self._add(layer, rows, arguments[0][0])

        return hook

    def _add(self, layer: int, rows: Tuple[torch.Tensor, ...], residual: Optional[torch.Tensor]) -> None:
        assert self._statistics is not None
        tensors = [*rows] if residual is None else [*rows, residual]
        if len({x.dtype for x in tensors}) > 1:
            tensors = [x.float() for x in tensors]
        tensors = [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]
        q, k, v = tensors[:3]
        self._statistics.add_layer(self._document, layer, q, k, v, tensors[3] if residual is not None else None, self.kind.pairs)
        self._next_layer = layer + 1
        self._progress((layer + 1) / self.geometry.n_layers)
