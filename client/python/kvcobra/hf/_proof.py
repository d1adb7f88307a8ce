"""What the attention of a transformers model is, measured on a small copy of the model instead of read from its name.

The copy has the model's configuration with every field kept but widths, and random weights. Two runs prove it:

- rotation: every layer gets the same vectors at all positions, so its keys are those of position 0, rotated. They are compared
  with half-split and with interleaved RoPE of the model's frequencies, at the first and at the last positions.
- attention: random tokens through the model's own attention and through reference(), which knows only what is in Layer.

What neither shows is refused, with the layer and the reason. Nothing here depends on the names of modules or of architectures. Models
with latent attention (MLA) run with a cache that notes what it gets (_latent.py).
"""
from __future__ import annotations

import contextlib
import copy
import math
import threading
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence as Items, Tuple

import torch
from transformers import MODEL_MAPPING, AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from ._fields import Fields, unread
from ._latent import Probe, check_sufficient, has_latent, rank_of, shared_key

NAME = "kvcobra_prove"
WINDOW, N_TOKENS = 96, 160  # every window of the copy; tokens of a run, 64 more
N_FAR = 16  # positions before the longest one
VOCABULARY = 128
SEED = 20261
# of the largest number: keys and cosines are binary32. A pair in wrong order, or a window off by one, gives 0.01 and more
TOLERANCE = 2e-4
ATTENTION_TOLERANCE = 1e-4  # of the largest number of a layer's output, which has rounding of softmax in binary32
HALF_SPLIT, INTERLEAVED = "half-split", "interleaved"
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
           "moe_k": 2, "moe_topk": 2, "experts_per_token": 2, "n_group": 1, "topk_group": 1}
WINDOWS = ("sliding_window", "attention_chunk_size", "floor_scale", "sliding_window_size", "window_size")


class Layer(NamedTuple):
    """The attention of one layer. frequencies: of RoPE, in radians per position, none: keys are not rotated. factor: rotated keys and
    queries are multiplied by it (YaRN). norm: "none", "before" or "after" RoPE. window: tokens that a query sees, its own
    included; None: all. cap: of scores, 0: none. sinks: a learned logit per head has a share of every softmax. latent: numbers of the
    vector that the keys and values of all heads are made of (MLA), 0: none; head_dim, pairs, frequencies are then of the key that all
    heads share."""

    head_dim: int
    pairs: str
    frequencies: Tuple[float, ...]
    factor: float
    scale: float
    norm: str
    window: Optional[int]
    cap: float
    sinks: bool
    latent: int = 0


class Proof(NamedTuple):
    """layers: None for a layer without attention to keys. plain: layers that add W_O times the output of attention to the residual
    stream, whose sum post_attention_layernorm gets. rotation_error, attention_error: the largest differences that were measured, as
    shares of the largest number."""

    layers: Tuple[Optional[Layer], ...]
    plain: FrozenSet[int]
    rotation_error: float
    attention_error: float


# ---- the attention of the copy ----

class _Seen:
    """What the attention of a layer was called with. Vectors are [heads, tokens, head_dim]."""

    def __init__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any,
                 scaling: Optional[float], named: Dict[str, Any]) -> None:
        self.module = module
        self.query, self.key, self.value = (x[0].double() for x in (query, key, value))
        self.mask = mask
        self.scale = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
        self.cap = float(named.get("softcap") or 0.0)
        self.sinks = named.get("s_aux")


class _Run(threading.local):
    """The forward pass of a copy in this thread. attend(seen): what its attention returns, [heads, tokens, head_dim]."""

    seen: Dict[int, _Seen] = {}
    attend: Optional[Callable[[int, _Seen], torch.Tensor]] = None


_run = _Run()


def _attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
               scaling: Optional[float] = None, dropout: float = 0.0, **named: Any) -> Tuple[torch.Tensor, None]:
    seen = _Seen(module, query, key, value, attention_mask, scaling, named)
    layer = int(module.layer_idx)
    _run.seen[layer] = seen
    assert _run.attend is not None
    return _run.attend(layer, seen).to(query.dtype).transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)


def _pass_values(layer: int, seen: _Seen) -> torch.Tensor:
    return seen.value.repeat_interleave(len(seen.query) // len(seen.value), 0)


def reference(seen: Any, layer: Layer) -> torch.Tensor:
    """Causal attention as @layer describes it. @seen.query: [heads, tokens, head_dim] after RoPE; keys and values alike."""
    group, n = len(seen.query) // len(seen.key), seen.query.shape[1]
    scores = seen.query @ seen.key.repeat_interleave(group, 0).transpose(1, 2) * layer.scale
    if layer.cap:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    hidden = distance < 0 if layer.window is None else (distance < 0) | (distance >= layer.window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks:
        scores = torch.cat([scores, seen.sinks.double().reshape(-1, 1, 1).expand(-1, n, 1)], 2)
    shares = scores.softmax(-1)[..., :n]
    return shares @ seen.value.repeat_interleave(group, 0)


# ---- the copy ----

def reduced(config: Any) -> Any:
    """A copy of the text configuration @config with small widths. Raises ValueError where widths are not single numbers."""
    small = copy.deepcopy(config)
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    for name, value in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("hidden_size", config.hidden_size)):
        if not isinstance(value, int):
            raise ValueError(f"the model's {name} is {value!r}: layers with different numbers of heads are not supported")
    if heads % kv_heads:
        raise ValueError(f"the model has {heads} heads and {kv_heads} KV heads, of which the first is no multiple")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    n_kv = min(kv_heads, 2)
    n = n_kv * min(heads // kv_heads, 2)
    named = dict(num_attention_heads=n, num_key_value_heads=n_kv, hidden_size=n * head_dim, vocab_size=VOCABULARY,
                 use_cache=False)
    for name, value in vars(config).items():
        if name.endswith("intermediate_size") and isinstance(value, int) and value:
            named[name] = 64
        elif name in EXPERTS and isinstance(value, int) and value:
            named[name] = min(value, EXPERTS[name])
        elif name in WINDOWS and isinstance(value, int) and value:
            named[name] = WINDOW
        elif name == "q_lora_rank" and value:
            named[name] = 64
        elif name.endswith("token_id") and isinstance(value, (int, list)):
            named[name] = None
        elif name.endswith("key_value_heads") and isinstance(value, int):
            named[name] = min(value, 2)
        elif name.endswith("_dropout") or name.endswith("_pdrop"):
            named[name] = 0.0
    for name, value in named.items():
        if hasattr(small, name):
            setattr(small, name, value)
    return small


def decoder_class(config: Any) -> Any:
    """The class that transformers makes of @config, without a head. Raises ValueError."""
    if type(config) not in MODEL_MAPPING:
        raise ValueError(f"transformers has no model for {type(config).__name__}")
    kind = MODEL_MAPPING[type(config)]
    return kind[0] if isinstance(kind, (list, tuple)) else kind


def _make(config: Any, kind: Any) -> Any:
    """A model of @config and of class @kind with drawn weights, on the CPU in binary64."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(SEED)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            config._attn_implementation = NAME
            config._experts_implementation = "eager"  # the others have no binary64
            model = kind(config)
        finally:
            torch.set_default_dtype(before)
        model = model.double().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                noise = torch.randn(p.shape)
                if "sink" in name:
                    p.copy_(noise)
                elif name.endswith("bias"):
                    p.copy_(0.5 * noise)
                elif "norm" in name and p.ndim == 1:
                    p.add_(torch.expm1(0.3 * noise))  # times exp(0.3 n), whether the weight is p or 1 + p
                elif p.ndim == 2 and "attn" in name or "embed" in name:
                    p.copy_(noise * (1.0 if "embed" in name else 3.0 / math.sqrt(p.shape[1])))  # far from uniform attention
    return model


def layers_of(decoder: Any) -> Any:
    """The layers of a decoder. Raises ValueError."""
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ValueError(f"{type(decoder).__name__} has no list `layers` of decoder layers: models whose positions are not RoPE are not "
                         "supported")
    return layers


# ---- rotation ----

class _Rotation(NamedTuple):
    frequencies: Tuple[float, ...]
    factor: float


def rotations(decoder: Any) -> List[_Rotation]:
    """All frequencies that rotary embeddings of @decoder have, the first of each length first."""
    found: List[_Rotation] = []
    for module in decoder.modules():
        for name, x in module._buffers.items():
            if x is None or not name.endswith("inv_freq") or "original" in name:
                continue
            factor = float(getattr(module, name[:-len("inv_freq")] + "attention_scaling", 1.0))
            rotation = _Rotation(tuple(x.double().tolist()), factor)
            if rotation not in found:
                found.append(rotation)
    return found


def rotate(x: torch.Tensor, frequencies: Items[float], positions: torch.Tensor, pairs: str) -> torch.Tensor:
    """@x [..., head_dim] rotated to @positions, which are a dimension of the result: [..., positions, head_dim]. Angles are products
    in binary32, as models have them."""
    n_rot = 2 * len(frequencies)
    angles = (positions[:, None].float() * torch.tensor(frequencies, dtype=torch.float32)).double()
    at = torch.arange(n_rot)
    low, high = (at[:n_rot // 2], at[n_rot // 2:]) if pairs == HALF_SPLIT else (at[::2], at[1::2])
    out = x.double()[..., None, :].repeat(*[1] * (x.ndim - 1), len(positions), 1)
    a, b = x.double()[..., None, low], x.double()[..., None, high]
    out[..., low], out[..., high] = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    return out


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


@contextlib.contextmanager
def _same_everywhere(decoder: Any) -> Iterator[None]:
    """Inside, every layer gets at all positions what it gets at the first."""
    def hook(module: Any, arguments: Tuple[Any, ...], result: Any) -> Any:
        x = result[0] if isinstance(result, tuple) else result
        x = x[:, :1].expand_as(x)
        return (x, *result[1:]) if isinstance(result, tuple) else x

    hooks = [layer.register_forward_hook(hook) for layer in layers_of(decoder)]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _forward(decoder: Any, ids: torch.Tensor, positions: torch.Tensor, attend: Callable[[int, _Seen], torch.Tensor],
             **named: Any) -> Tuple[Dict[int, _Seen], Any]:
    _run.seen, _run.attend = {}, attend
    try:
        with torch.no_grad():
            result = decoder(input_ids=ids, position_ids=positions[None], use_cache=False, **named)
        return _run.seen, result
    finally:
        _run.seen, _run.attend = {}, None


def _match(near: _Seen, far: _Seen, last: torch.Tensor, candidates: Items[_Rotation]) -> Tuple[Optional[_Rotation], str, float, str]:
    """The rotation that explains the keys and queries of a layer, its pairs, the difference, and the reason if there is none."""
    first = torch.arange(near.key.shape[1])
    best: Tuple[Optional[_Rotation], str, float, str] = (
        None, "", math.inf, "its keys at later positions are not those of position 0, rotated by a frequency of the model: RoPE of "
        "another form, a position in the input, or a bias")
    for rotation in [_Rotation((), 1.0), *candidates]:
        for pairs in (HALF_SPLIT, INTERLEAVED)[:1 + bool(rotation.frequencies)]:
            if 2 * len(rotation.frequencies) > near.key.shape[-1]:
                continue
            error = _difference(near.key, rotate(near.key[:, 0], rotation.frequencies, first, pairs))
            if error >= min(best[2], TOLERANCE):
                continue
            reason = ""
            if _difference(far.key, rotate(near.key[:, 0], rotation.frequencies, last, pairs)) > TOLERANCE:
                reason = "the frequencies of its RoPE change with the length of the text"
            for seen, positions in ((near, first), (far, last)):
                if _difference(seen.query, rotate(near.query[:, 0], rotation.frequencies, positions, pairs)) > TOLERANCE:
                    reason = reason or "its queries are scaled by the position (a temperature of attention)"
            best = (rotation, pairs, error, reason)
    return best


def _attention_norms(decoder: Any) -> Dict[int, List[torch.nn.Parameter]]:
    """Weights of the norms of keys and queries per layer."""
    found: Dict[int, List[torch.nn.Parameter]] = {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and hasattr(module, "is_causal"):
            found[index] = [p for name, p in module.named_parameters() if "norm" in name]
    return found


def _rotation_runs(decoder: Any, longest: int) -> Tuple[Dict[int, Any], Dict[int, Any], torch.Tensor]:
    """What attention gets of the first positions and of the last ones, which are returned too. Of a layer with MLA: shared_key()."""
    ids = torch.full((1, N_TOKENS), 5)
    last = torch.arange(2 * longest - N_FAR, 2 * longest)  # some frequencies change at the longest position only
    probes = (Probe(decoder.config), Probe(decoder.config)) if has_latent(decoder.config) else (None, None)
    with _same_everywhere(decoder):
        near, _ = _forward(decoder, ids, torch.arange(N_TOKENS), _pass_values, past_key_values=probes[0])
        far, _ = _forward(decoder, ids[:, :N_FAR], last, _pass_values, past_key_values=probes[1])
    for probe, seen in zip(probes, (near, far)):
        for i, pair in probe.found.items() if probe else ():
            seen[i] = shared_key(i, seen[i], pair, probes[0].found[i])
    return near, far, last


class _Rotated(NamedTuple):
    rotation: _Rotation
    pairs: str
    norm: str
    error: float


def _prove_rotation(config: Any, kind: Any, longest: int) -> Dict[int, _Rotated]:
    """Per layer with attention. Raises ValueError."""
    decoder = _make(config, kind)
    candidates = rotations(decoder)
    norms = _attention_norms(decoder)
    near, far, last = _rotation_runs(decoder, longest)
    found = {i: _match(near[i], far[i], last, candidates) for i in near}
    before = {i: "before" if norms.get(i) and isinstance(near[i], _Seen) else "none" for i in near}
    again = [i for i in near if found[i][0] is None and norms.get(i)]
    if again:  # a norm after RoPE commutes with it if all its weights are the same
        decoder = _make(config, kind)
        with torch.no_grad():
            for p in (p for i, ps in _attention_norms(decoder).items() if i in again for p in ps):
                p.fill_(0.5)
        near, far, last = _rotation_runs(decoder, longest)
        for i in again:
            found[i], before[i] = _match(near[i], far[i], last, rotations(decoder)[:len(candidates)] or candidates), "after"
    result = {}
    for i, (rotation, pairs, error, reason) in sorted(found.items()):
        if rotation is None or reason:
            raise ValueError(f"layer {i}: {reason}")
        result[i] = _Rotated(rotation, pairs, before[i], error)
    return result


# ---- attention ----

def _window(mask: torch.Tensor, layer: int) -> Optional[int]:
    """The window that the mask @mask [tokens, tokens] of additions to scores gives. Raises ValueError for another one."""
    n = len(mask)
    visible = mask > torch.finfo(mask.dtype).min / 2
    if bool(visible.triu(1).any()):
        raise ValueError(f"layer {layer}: a token attends to later ones")
    if bool(((mask != 0) & visible).any()):
        raise ValueError(f"layer {layer}: numbers are added to scores by distance (ALiBi or a position bias)")
    distance = torch.arange(n)[:, None] - torch.arange(n)
    if bool((visible == (distance >= 0)).all()):
        return None
    window = int(visible[-1].sum())
    if bool((visible == ((distance >= 0) & (distance < window))).all()):
        return window
    raise ValueError(f"layer {layer}: its tokens attend within chunks, or to others than the newest ones")


def _real_window(config: Any, measured: Optional[int], layer: int, longest: int) -> Optional[int]:
    if measured is None:
        return None
    values = {getattr(config, name) for name in WINDOWS if getattr(config, name, None)}
    if measured != WINDOW or len(values) != 1:
        raise ValueError(f"layer {layer}: its window of {measured} tokens in a copy with windows of {WINDOW} belongs to no single "
                         "field of the configuration")
    window = int(values.pop())
    return window if window < longest else None


class _Plain:
    """Finds the layers that Proof.plain names, by hooks on the modules that metric "output" will read."""

    def __init__(self, layer: Any) -> None:
        self._scale = float(getattr(layer, "residual_multiplier", 1.0))
        self._before = self._heads = self._added = self._sum = None
        projection = getattr(getattr(layer, "self_attn", None), "o_proj", None)
        norm = getattr(layer, "post_attention_layernorm", None)
        self.hooks = []
        if projection is not None and norm is not None:
            self.hooks = [layer.register_forward_pre_hook(self._enter, with_kwargs=True), projection.register_forward_hook(self._project),
                          norm.register_forward_pre_hook(self._end)]

    def _enter(self, module: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        self._before = arguments[0] if arguments else named["hidden_states"]

    def _project(self, module: Any, arguments: Tuple[Any, ...], result: Any) -> None:
        self._heads, self._added = arguments[0], result

    def _end(self, module: Any, arguments: Tuple[Any, ...]) -> None:
        self._sum = arguments[0]

    def found(self, attended: torch.Tensor) -> bool:
        """@attended: what attention returned, [heads, tokens, head_dim]."""
        for handle in self.hooks:
            handle.remove()
        if self._before is None or self._heads is None or self._added is None or self._sum is None:
            return False
        heads = attended.transpose(0, 1).reshape(1, N_TOKENS, -1)
        return (self._heads.shape == heads.shape and _difference(self._heads.double(), heads) < TOLERANCE
                and _difference(self._sum.double(), self._before.double() + self._added.double() * self._scale) < TOLERANCE)


def _own_states(decoder: Any, ids: torch.Tensor) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """What every layer of @decoder gets and returns, with its own attention."""
    inputs: List[torch.Tensor] = []
    outputs: List[torch.Tensor] = []

    def enter(module: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        inputs.append(arguments[0] if arguments else named["hidden_states"])

    def leave(module: Any, arguments: Tuple[Any, ...], result: Any) -> None:
        outputs.append(result[0] if isinstance(result, tuple) else result)

    hooks = [hook for layer in layers_of(decoder)
             for hook in (layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave))]
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            decoder(input_ids=ids, position_ids=torch.arange(N_TOKENS)[None], use_cache=False)
    finally:
        decoder.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return inputs, outputs


@contextlib.contextmanager
def _fed(decoder: Any, inputs: List[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """Inside, every layer of @decoder gets @inputs, so that differences of rounding do not grow from layer to layer. Yields what the
    layers return."""
    outputs: List[torch.Tensor] = []

    def leave(module: Any, arguments: Tuple[Any, ...], result: Any) -> Any:
        outputs.append(result[0] if isinstance(result, tuple) else result)
        n = len(outputs)
        if n == len(inputs):
            return result
        return (inputs[n], *result[1:]) if isinstance(result, tuple) else inputs[n]

    hooks = [layer.register_forward_hook(leave) for layer in layers_of(decoder)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _prove_attention(config: Any, kind: Any, real: Any, longest: int,
                     rotated: Dict[int, _Rotated]) -> Tuple[Dict[int, Layer], FrozenSet[int], float]:
    decoder = _make(config, kind)
    plain = [_Plain(layer) for layer in layers_of(decoder)]
    attended: Dict[int, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(1, VOCABULARY, (1, N_TOKENS), generator=generator)
    measured: Dict[int, Layer] = {}
    probe = Probe(config) if has_latent(config) else None
    cached = {} if probe is None else probe.found

    def attend(i: int, seen: _Seen) -> torch.Tensor:
        latent = rank_of(i, cached[i]) if i in cached else 0
        if seen.key.shape != seen.value.shape and not latent:
            raise ValueError(f"layer {i}: keys have {seen.key.shape[-1]} numbers, values {seen.value.shape[-1]}")
        if any(other.key.shape == seen.key.shape and torch.equal(other.key, seen.key) for j, other in _run.seen.items() if j != i):
            raise ValueError(f"layer {i}: its keys are those of another layer")
        mask = seen.mask[0, 0] if isinstance(seen.mask, torch.Tensor) else torch.full((N_TOKENS, N_TOKENS), -1e30).triu(1)
        window = _window(mask, i)
        r = rotated[i]
        measured[i] = Layer(cached[i][1].shape[-1] if latent else seen.key.shape[-1], r.pairs, r.rotation.frequencies, r.rotation.factor,
                            seen.scale, r.norm, window, seen.cap, seen.sinks is not None, latent)
        attended[i] = reference(seen, measured[i])
        return attended[i]

    inputs, outputs = _own_states(decoder, ids)
    worst = 0.0
    with _fed(decoder, inputs) as made:
        seen, _ = _forward(decoder, ids, torch.arange(N_TOKENS), attend, past_key_values=probe)
    is_plain = frozenset(i for i, x in attended.items() if i < len(plain) and plain[i].found(x) and not measured[i].latent)
    if probe is not None:
        again, _ = _forward(decoder, ids.flip(1), torch.arange(N_TOKENS), _pass_values, past_key_values=Probe(config, cached))
        check_sufficient({i: seen[i] for i in cached}, again)
    for i, (a, b) in enumerate(zip(made, outputs)):
        error = _difference(a, b)
        worst = max(worst, error)
        if not error < ATTENTION_TOLERANCE:
            raise ValueError(f"layer {i}: the model's attention differs by {error:.0e} from one with its scale, window, cap and sinks: it does "
                             "something else besides")
    real_layers = {i: layer._replace(window=_real_window(real, layer.window, i, longest)) for i, layer in measured.items()}
    return real_layers, is_plain, worst


# ---- what is asked for ----

def refuse(config: Any) -> None:
    """Raises ValueError for what the configuration alone tells."""
    several = getattr(vars(config).get("_heterogeneity_spec"), "per_layer_attributes", None)
    if several:
        raise ValueError(f"the layers of the model differ in {', '.join(sorted(several))}, which is not supported")
    if getattr(config, "index_topk", None):
        raise ValueError("the model chooses the keys of each query by an indexer (index_topk), whose own keys pages do not hold")
    if getattr(config, "alibi", None) or getattr(config, "position_embedding_type", None) == "alibi":
        raise ValueError("the model adds numbers to scores by distance (ALiBi), which attention to packed keys does not")
    if getattr(config, "use_bidirectional_attention", None):
        raise ValueError("the model attends to later tokens (use_bidirectional_attention)")
    if getattr(config, "num_kv_shared_layers", 0):
        raise ValueError(f"{config.num_kv_shared_layers} of the model's layers share the keys and values of others (num_kv_shared_layers)")
    if getattr(config, "attn_temperature_tuning", None):
        raise ValueError("the model scales queries by the position (attn_temperature_tuning)")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError("the model has an encoder: cross attention is not supported")


_proofs: Dict[str, Any] = {}  # by class and configuration: a Proof, or the sentence of a refusal


def prove(config: Any, kind: Any) -> Proof:
    """The attention of every layer of the model with the text configuration @config. @kind: the class of its decoder. Raises ValueError, with the layer and the reason, if it cannot be described."""
    key = f"{kind} {config.to_json_string(use_diff=False)}"
    if key not in _proofs:
        try:
            _proofs[key] = _prove(config, kind)
        except ValueError as e:
            _proofs[key] = str(e)
        except Exception as e:  # of the model's own code, whose configuration it was not made for
            _proofs[key] = f"its attention could not be measured on a small copy: {type(e).__name__}: {e}"
    proof = _proofs[key]
    if isinstance(proof, str):
        raise ValueError(proof)
    assert isinstance(proof, Proof)
    return proof


def _prove(config: Any, kind: Any) -> Proof:
    refuse(config)
    longest = int(getattr(config, "max_position_embeddings", None) or 32768)
    small, fields = reduced(config), Fields()
    with fields.watching(small):
        rotated = _prove_rotation(small, kind, max(longest, N_TOKENS))
        layers, plain, error = _prove_attention(small, kind, config, longest, rotated)
    names = unread(config, fields.read)
    if names:
        raise ValueError(f"the configuration has {', '.join(names)}, which no code of the model reads: what it changes in attention is not "
                         "known")
    if not layers:
        raise ValueError("the model calls no attention that transformers lets others replace")
    if max(layers) >= config.num_hidden_layers:
        raise ValueError(f"the model has an attention number {max(layers)}, but {config.num_hidden_layers} layers")
    return Proof(tuple(layers.get(i) for i in range(config.num_hidden_layers)), plain, max(r.error for r in rotated.values()), error)
