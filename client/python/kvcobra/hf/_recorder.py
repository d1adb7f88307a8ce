"""What a transformers model computes, layer by layer, for kvcobra.calibrate().

The attention function of the model is replaced for the time of a recording: it sees queries and keys after RoPE and values of
every accepted model, whatever the modules are called. The library rotates keys and queries back.
"""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, List, Optional, Sequence as Items, Tuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_outputs import MoeModelOutputWithPast

from .._alloc import Statistics
from .._calibrate import Unsuitable
from .._groups import numbers, vectors
from ._geometry import find_decoder, model_groups, model_proof
from ._latent import has_latent
from ._sequences import places

NAME = "kvcobra_record"
TAG = "_kvcobra_recorder"  # attribute of the attention modules during a recording
Rows = Tuple[Optional[torch.Tensor], ...]  # queries, and what a layer's cache has: [tokens, heads, numbers]
HEAD_TOKENS = 64  # whose logits are in memory together


def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
              scaling: Optional[float] = None, dropout: float = 0.0, **kwargs: Any) -> Tuple[torch.Tensor, None]:
    """@query, @key, @value: [1, heads, tokens, head_dim]."""
    recorder = getattr(module, TAG, None)
    if recorder is not None and not recorder.reads_cache:
        recorder.take(module.layer_idx, query, key, value)
    if kwargs.get("s_aux") is not None or kwargs.get("softcap"):
        return _plain_attention(query, key, value, attention_mask, scaling, kwargs), None
    result: Tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                                               scaling=scaling, **kwargs)
    return result


def _plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor],
                     scaling: Optional[float], named: Any) -> torch.Tensor:
    """Attention with capped scores or learned sinks, which sdpa lacks. @mask: true where a key is seen; None: causal."""
    group, n = query.shape[1] // key.shape[1], query.shape[2]
    scores = query @ key.repeat_interleave(group, 1).transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if named.get("softcap"):
        scores = named["softcap"] * torch.tanh(scores / named["softcap"])
    seen = torch.ones(n, n, dtype=torch.bool).tril() if mask is None else mask
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if named.get("s_aux") is not None:
        scores = torch.cat([scores, named["s_aux"].to(scores.dtype).reshape(1, -1, 1, 1).expand(len(scores), -1, n, 1)], 3)
    shares = scores.softmax(-1, dtype=torch.float32).to(value.dtype)[..., :n]
    return (shares @ value.repeat_interleave(group, 1)).transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class _Cache(DynamicCache):  # type: ignore[misc]
    """An empty cache, which hands @recorder what it gets: latents and shared keys (MLA), which attention does not see."""

    def __init__(self, recorder: "Recorder", config: Any) -> None:
        super().__init__(config=config)
        self._recorder = recorder

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *arguments: Any,
               **named: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        self._recorder.take(layer_idx, None, key_states, value_states)
        return key_states, value_states


@contextlib.contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, @forward is the forward() of @module."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


class Recorder:
    """Hands what @model computes to statistics. Raises ValueError, with the reason, if the model does not fit.

    metric: "output"; "fisher", which needs a backward pass; or "mse", which needs no queries and no residual stream.
    """

    def __init__(self, model: Any, metric: str) -> None:
        self.groups = model_groups(model)
        self._places = places(self.groups)
        self._model, self._decoder = model, find_decoder(model)
        self.reads_cache = has_latent(self._decoder.config)
        self.metric, self._wants_output, self._wants_gradients = metric, metric == "output", metric == "fisher"
        self._in_backward = False
        self._statistics: Items[Statistics] = ()
        self._taken: Optional[Rows] = None
        self._document, self._n_taken = 0, 0
        self._progress: Callable[[float], None] = lambda share: None
        if self._wants_output:
            self._refuse()
        if self._wants_gradients and (not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None):
            raise ValueError("the model has no head that predicts tokens, which metric 'fisher' needs: use metric='mse'")

    def check_window(self, window: int) -> None:
        """Raises ValueError unless windows of @window tokens of text suit the metric."""
        for group in self.groups if self._wants_output else ():
            if group.kind.window is not None and group.kind.window < window:
                raise Unsuitable(f"layers {numbers(group.layers)} see {group.kind.window} tokens, fewer than a window of {window} tokens of "
                                 "text: metric 'output' weighs hidden keys too. Use metric='fisher' or 'mse', or a smaller window")

    def _refuse(self) -> None:
        other = [i for i in self._places if i not in model_proof(self._model).plain]
        if other:
            raise Unsuitable(f"layers {numbers(other)} of the model change the output of attention before it is added to the residual "
                             "stream, or add it in another place, which metric 'output' does not describe: use metric='fisher' or 'mse'")
        for group in self.groups:
            if group.kind.latent:
                raise Unsuitable(f"layers {numbers(group.layers)} of the model have latent attention (MLA), which metric 'output' does not "
                                 "describe: use metric='fisher' or 'mse'")
            if group.kind.cap or group.kind.sinks:
                raise Unsuitable(f"layers {numbers(group.layers)} of the model have {'capped scores' if group.kind.cap else 'learned sinks'}, "
                                 "which metric 'output' does not describe: use metric='fisher' or 'mse'")
        for i in self._places:
            layer = self._decoder.layers[i]
            weight = getattr(layer.self_attn.o_proj, "weight", None)
            if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.ndim != 2:
                raise Unsuitable(f"the output projection of layer {i} is not a plain matrix (is the model quantised?): load the "
                                 "original weights, or use metric='fisher' or 'mse'")

    @contextlib.contextmanager
    def recording(self, statistics: Items[Statistics]) -> Iterator[None]:
        """Inside, run() adds windows to @statistics, which are in the order of the groups. The model is as before afterwards."""
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
            for i, ((group, place),) in self._places.items() if self._wants_output else ():
                layer = self._decoder.layers[i]
                hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(self._make_hook(i)))
                scale = float(getattr(layer, "residual_multiplier", 1.0))
                weight = layer.self_attn.o_proj.weight.detach()
                statistics[group].set_output_projection(place, weight if scale == 1.0 else weight.float() * scale)
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module in tagged:
                if hasattr(module, TAG):
                    delattr(module, TAG)
            model.set_attn_implementation(before)
            model.train(training)
            self._statistics, self._taken = (), None

    def run(self, document: int, tokens: List[int], progress: Callable[[float], None]) -> None:
        """Adds one window. @progress gets the share of it that is done."""
        self._document, self._n_taken, self._progress = document, 0, progress
        if self._wants_gradients:
            self._run_with_gradients(torch.tensor([tokens]))
        else:
            with torch.no_grad():
                self._decoder(input_ids=torch.tensor([tokens]), use_cache=False, past_key_values=self._cache())
        if self._n_taken != len(self._places):
            raise ValueError(f"the model called the attention of {self._n_taken} layers, but has {len(self._places)}")

    def _cache(self) -> Optional[_Cache]:
        return _Cache(self, self._decoder.config) if self.reads_cache else None

    def _run_with_gradients(self, ids: torch.Tensor) -> None:
        """A forward pass that keeps what goes from layer to layer, and a backward pass that computes each layer again."""
        self._in_backward = False
        with self._constant_weights(), torch.enable_grad():
            with self._checkpointed():
                states = self._decoder(input_ids=ids, use_cache=False, past_key_values=self._cache()).last_hidden_state
                self._in_backward = True  # takes are repetitions from here on
                states.backward(self._gradient(states.detach(), ids))

    def _gradient(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The gradient of the sum of log p(y) by the last states @states; y is drawn from the model's own distribution."""
        states.requires_grad_(True)
        generator = torch.Generator().manual_seed(self._document % 2**63)
        piece = states
        with _replaced(self._decoder, lambda *arguments, **named: MoeModelOutputWithPast(last_hidden_state=piece)):
            for first in range(0, ids.shape[1], HEAD_TOKENS):
                piece = states[:, first:first + HEAD_TOKENS]
                logits = self._model(input_ids=ids[:, first:first + HEAD_TOKENS], use_cache=False).logits[0].float()
                drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)
                logits.log_softmax(-1).gather(1, drawn).sum().backward()
        assert states.grad is not None
        return states.grad

    @contextlib.contextmanager
    def _constant_weights(self) -> Iterator[None]:
        """Inside, no gradients by weights are computed."""
        weights = [p for p in self._model.parameters() if p.requires_grad]
        for p in weights:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in weights:
                p.requires_grad_(True)

    @contextlib.contextmanager
    def _checkpointed(self) -> Iterator[None]:
        """Inside, the backward pass of a layer computes the layer again, instead of the forward pass keeping what it made."""
        with contextlib.ExitStack() as stack:
            for layer in self._decoder.layers:
                again = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
                stack.enter_context(_replaced(layer, again))
            yield

    def _hook_gradients(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """The backward pass hands over gradients by @key and @value."""
        for number, x in enumerate((key, value)):
            if not x.requires_grad:
                x.requires_grad_(True)  # no gradient goes into the first layer
            if not self._in_backward:
                x.register_hook(functools.partial(self._take_gradient, layer, number))

    def _take_gradient(self, layer: int, number: int, g: torch.Tensor) -> None:
        """@number: 0: @g is by the first, 1: by the second of what take() got."""
        rows = g[0].transpose(0, 1)
        for group, place in self._places[layer]:
            x = self.groups[group]
            for side, of_side in zip("kv", vectors(x.part, *((rows, None) if number == 0 else (None, rows)))):
                if of_side is not None:
                    if side == "k" and x.factor != 1.0:
                        of_side = of_side * x.factor
                    self._statistics[group].add_gradients(place, side, of_side, x.kind.pairs)
        self._progress(1 - (layer + 0.5 * number) / (2 * len(self._places)))

    def take(self, layer: int, query: Optional[torch.Tensor], key: torch.Tensor, value: torch.Tensor) -> None:
        """Called by the attention of a layer, or by its cache, with what that has of the new tokens and without queries."""
        if self._wants_gradients:
            self._hook_gradients(layer, key, value)
            if self._in_backward:
                return
            query, key, value = None if query is None else query.detach(), key.detach(), value.detach()
        rows = tuple(None if x is None else x[0].transpose(0, 1) for x in (query, key, value))
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

    def _add(self, layer: int, rows: Rows, residual: Optional[torch.Tensor]) -> None:
        query, first, second = rows
        for group, place in self._places[layer]:
            x = self.groups[group]
            k, v = vectors(x.part, first, second)
            q = query
            if x.factor != 1.0:  # YaRN: the geometry's scale has it
                q, k = None if q is None else q / x.factor, k / x.factor
            if v is None:
                v = torch.zeros_like(k)
            given = [t for t in (q, k, v, residual) if t is not None]
            if len({t.dtype for t in given}) > 1:
                q, k, v, residual = (None if t is None else t.float() for t in (q, k, v, residual))
            q, k, v, residual = (t if t is None or t.stride(-1) == 1 else t.contiguous() for t in (q, k, v, residual))
            self._statistics[group].add_layer(self._document, place, q, k, v, residual, x.kind.pairs)
        self._n_taken += 1
        self._progress((layer + 1) / len(self._places) / (2 if self._wants_gradients else 1))
