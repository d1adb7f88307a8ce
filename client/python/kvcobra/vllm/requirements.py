"""What the connector needs of an engine's configuration. An engine that lacks it does not start, with the reason."""
from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence as Items

from .._groups import HEADS, numbers
from . import geometry
from .geometry import Geometry, layer_number
from .options import Options

RECOMPUTE = "recompute"
CACHE_DTYPES = ("auto", "bfloat16", "float16")
MLA = "MLAAttentionSpec"


def set_policy(kv_transfer_config: Any) -> bool:
    """Sets what vLLM does after a load that failed, which its scheduler reads when it has made the connector. False: it is set.
    vLLM does not tell its default from the same value that a user wrote, with which this connector could not be used."""
    if kv_transfer_config.kv_load_failure_policy == RECOMPUTE:
        return False
    kv_transfer_config.kv_load_failure_policy = RECOMPUTE
    return True


def _policy(config: Any) -> Iterator[str]:
    policy = config.kv_transfer_config.kv_load_failure_policy
    if policy != RECOMPUTE:
        yield (f"kv_load_failure_policy is {policy!r}: a request whose pages cannot be read would fail. Set "
               "\"kv_load_failure_policy\": \"recompute\" in --kv-transfer-config")


def _parallel(config: Any) -> Iterator[str]:
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield f"{name} is {getattr(parallel, name)}: only tensor parallelism is supported"


def _model(config: Any) -> Iterator[str]:
    model = config.model_config
    if model.is_encoder_decoder:
        yield "the model has an encoder and a decoder"
    if model.is_hybrid or model.is_attention_free:
        yield "the model has layers without attention"
    if model.uses_mrope:
        yield "the model uses M-RoPE: the position of a token is not its index"
    if model.quantization == "gguf":
        yield "the model is a GGUF file, whose keys vLLM rotates in other pairs: use the model's safetensors folder"
    speculative = config.speculative_config
    if speculative is not None and speculative.method not in ("ngram", "suffix"):
        yield f"speculative decoding by {speculative.method!r} has layers of its own"


def _other_attention(spec: Any) -> str:
    """What a kind of cache means for attention; "": keys and values of all tokens, or of those in a window."""
    kind = type(spec).__name__
    chunk = getattr(spec, "attention_chunk_size", None)
    if chunk is not None:
        return f"attention in chunks of {chunk} tokens"
    if kind == "MambaSpec":
        return "a state instead of keys and values"
    if kind == MLA and (getattr(spec, "model_version", None) or getattr(spec, "tokens_per_state", 1) != 1):
        return "compressed latents (MLA of another form)"
    return "" if kind in ("FullAttentionSpec", "SlidingWindowSpec", MLA) else f"a cache of kind {kind}"


def _cache(config: Any, kv_cache_config: Any) -> Iterator[str]:
    dtype = str(config.cache_config.cache_dtype)
    if dtype not in CACHE_DTYPES:
        yield f"kv_cache_dtype is {dtype!r}: keys and values would be quantised twice. Supported are {', '.join(CACHE_DTYPES)}"
    groups = kv_cache_config.kv_cache_groups
    others = list(dict.fromkeys(kind for group in groups if (kind := _other_attention(group.kv_cache_spec))))
    if others:
        yield f"all layers must have keys and values, and the model has layers with {', and with '.join(others)}"
        return
    specs = [group.kv_cache_spec for group in groups]
    if any(getattr(spec, "non_causal", False) for spec in specs):
        yield "the model attends to later tokens"
    for spec in specs:
        if type(spec).__name__ != MLA and spec.head_size_v != spec.head_size:
            yield f"the model's keys have {spec.head_size} numbers, its values {spec.head_size_v}"
            break
    n_layers = config.model_config.hf_text_config.num_hidden_layers
    n_cached = sum(len(group.layer_names) for group in groups)
    if n_cached != n_layers:
        yield f"{n_cached} of {n_layers} layers have a KV cache: layers that share one are not supported"


def _weights(config: Any, model_id: Optional[str]) -> Iterator[str]:
    """The digest of a folder names the weights that run only if they are those of the folder."""
    model = config.model_config
    if config.load_config.load_format == "dummy" and model_id is None:
        yield ("--load-format dummy: the weights are random, not those of the model's folder, whose pages others would take for "
               "theirs. Name them by a model_id of their own in kv_connector_extra_config")
    if model.quantization and model_id is None and getattr(model.hf_config, "quantization_config", None) is None:
        yield (f"vLLM quantises the weights ({model.quantization}) that the digest of the model's folder is of: name the model "
               "that this makes by model_id in kv_connector_extra_config")


def _codes(config: Any, options: Options) -> Iterator[str]:
    """What attention on codes needs besides."""
    if config.cache_config.enable_prefix_caching:
        yield "attention on codes needs --no-enable-prefix-caching: kvcobrad has the prefixes, vLLM's own cache is empty"
    if config.cache_config.block_size % 64 != 0:
        yield f"the block size is {config.cache_config.block_size}; attention on codes needs a multiple of 64 (--block-size 64)"
    if config.speculative_config is not None:
        yield "attention on codes does not support speculative decoding"
    if config.kv_transfer_config.kv_role != "kv_both":
        yield f"kv_role is {config.kv_transfer_config.kv_role!r}; attention on codes needs \"kv_both\""
    if options.async_load:
        yield "async_load has no meaning with attention on codes, which decodes nothing"


def _geometry(of_model: Callable[[Any], Items[Geometry]], config: Any, kv_cache_config: Any, codes: bool) -> Iterator[str]:
    try:
        groups = of_model(config.model_config)
    except ValueError as e:
        yield str(e)
        return
    if len({g.n_kv_heads for g in groups}) > 1 and config.parallel_config.tensor_parallel_size > 1:
        yield "layers with different numbers of KV heads are supported on one rank only (tensor_parallel_size 1)"
    latent = {layer: g.part != HEADS for g in groups for layer in g.layers}
    for group in kv_cache_config.kv_cache_groups:
        for name in group.layer_names:
            in_vllm = type(group.kv_cache_spec).__name__ == MLA
            if latent.get(layer_number(name), in_vllm) != in_vllm:
                other = ("latents (MLA)", "keys and values of heads")[not in_vllm]
                yield f"vLLM keeps {other} of layer {layer_number(name)}, and transformers does not"
                return
    yield from _windows(groups, kv_cache_config)
    if not codes:
        return
    if len(groups) > 1:
        yield f"the layers have attention of {len(groups)} kinds: attention on codes supports one"
    for g in groups:
        if g.window is not None:
            yield f"layers {numbers(g.layers)} have a window of {g.window} tokens: attention on codes does not support it"
        if g.needs:
            yield f"layers {numbers(g.layers)} have {g.needs}: attention on codes does not support it"
        if g.factor != 1.0:
            yield "the model has YaRN, which multiplies keys: attention on codes does not support it"


def _windows(groups: Items[Geometry], kv_cache_config: Any) -> Iterator[str]:
    """vLLM may keep more of a layer than its window, and not less."""
    windows = {layer: g.window for g in groups for layer in g.layers}
    for group in kv_cache_config.kv_cache_groups:
        window = getattr(group.kv_cache_spec, "sliding_window", None)
        for name in group.layer_names if window is not None else ():
            ours = windows.get(layer_number(name))
            if ours is None or ours > window:
                yield (f"vLLM gives layer {layer_number(name)} a window of {window} tokens, transformers "
                       f"{'none' if ours is None else f'one of {ours}'}")
                return


def check(config: Any, kv_cache_config: Any, options: Options, codes: bool, of_model: Callable[[Any], Items[Geometry]] = geometry.of_model) -> None:
    """Raises ValueError with every reason why KvCobraConnector cannot serve the engine of VllmConfig @config.
    @codes: it attends to codes. @of_model: gives the groups of layers of a ModelConfig, or raises ValueError."""
    reasons = [*_policy(config), *_parallel(config), *_model(config), *_cache(config, kv_cache_config),
               *_weights(config, options.model_id), *(_codes(config, options) if codes else ())]
    if options.repeatable and not codes:
        reasons.append("repeatable is an option of attention on codes, which KVCOBRA_ATTENTION=1 switches on")
    if not reasons:
        reasons += _geometry(of_model, config, kv_cache_config, codes)
    if reasons:
        raise ValueError("KvCobraConnector: " + "; ".join(reasons))
