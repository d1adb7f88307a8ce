"""The geometry of a transformers model, and the models that are refused by name.

Only models whose attention was compared with this one are accepted: an unknown model may order the dimensions of RoPE
differently, and its pages would be wrong for every other client.
"""
from __future__ import annotations

import math
from typing import Any, Tuple

import torch

from .._client import Geometry

# model types whose tests compare the attention of an exact piece with that of transformers
MODEL_TYPES = ("gemma", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the length
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# the model computes its frequencies in binary32: a few roundings
FREQUENCY_TOLERANCE = 1e-6


def model_geometry(model: Any) -> Geometry:
    """The geometry of @model. Raises ValueError, with the reason, if the model cannot use a KvCobraCache."""
    _refuse_kinds(model)
    config, decoder = model.config, find_decoder(model)
    _refuse_attention(config)
    _refuse_rope(config)
    if config.model_type not in MODEL_TYPES:
        raise ValueError(f"the model type '{config.model_type}' was not compared with kvcobra; these were: "
                         f"{', '.join(MODEL_TYPES)}")
    _refuse_place(model)
    attention = decoder.layers[0].self_attn
    frequencies = _frequencies(config, decoder)
    factor = rope_factor(model)
    n_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Geometry(config.num_hidden_layers, config.num_attention_heads, n_kv_heads, attention.head_dim, 2 * len(frequencies),
                    attention.scaling * factor * factor, frequencies)


def find_decoder(model: Any) -> Any:
    """The module that has the layers and the rotary embedding."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    decoder = decoder if decoder is not None else model
    if not hasattr(decoder, "rotary_emb") or not hasattr(decoder, "layers"):
        raise ValueError(f"{type(model).__name__} has no rotary embedding that is common to its layers")
    return decoder


def _frequencies(config: Any, decoder: Any) -> Tuple[float, ...]:
    """The model's RoPE frequencies. Where the formula is known they are computed in binary64, as other programs do, so that
    statistics and tables of this model fit those of others to the bit."""
    rounded = tuple(decoder.rotary_emb.inv_freq.double().tolist())  # the model computes in binary32
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta")
    if rope.get("rope_type", "default") != "default" or theta is None:
        return rounded
    exact = tuple(float(theta) ** (-i / len(rounded)) for i in range(len(rounded)))
    is_the_same = all(math.isclose(a, b, rel_tol=FREQUENCY_TOLERANCE) for a, b in zip(exact, rounded))
    return exact if is_the_same else rounded


def rope_factor(model: Any) -> float:
    """The factor that the model multiplies its rotated keys and queries with (YaRN); 1 for most models. Keys are stored
    without it, and the scale of attention has its square."""
    return float(getattr(find_decoder(model).rotary_emb, "attention_scaling", 1.0))


def _refuse_kinds(model: Any) -> None:
    if type(model).__name__ == "OptimizedModule":
        raise ValueError("the model is wrapped by torch.compile(), which cannot trace calls of libkvcobra: pass the model itself")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("the model has an encoder: cross attention is not supported")
    implementation = getattr(getattr(model, "generation_config", None), "cache_implementation", None)
    if implementation is not None:
        raise ValueError(f"the model's generation_config asks for cache_implementation={implementation!r}: static and quantised "
                         "caches cannot be combined with this one; set it to None")


def _refuse_attention(config: Any) -> None:
    if getattr(config, "kv_lora_rank", None):
        raise ValueError("the model has multi-head latent attention (MLA), whose cache is not keys and values of heads")
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        raise ValueError(f"the model has layers of type {', '.join(sorted(kinds - {'full_attention'}))}: sliding windows and "
                         "others than full attention are not supported")
    # models without layer_types apply the window to all layers, unless use_sliding_window says otherwise
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise ValueError(f"the model has a sliding window of {config.sliding_window} tokens, which is not supported")
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap:
        raise ValueError(f"the model caps the scores of attention (attn_logit_softcapping={softcap}), which is not supported")


def _refuse_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    if "mrope_section" in rope:
        raise ValueError("the model has M-RoPE: several positions per token are not supported")
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ValueError(f"the model has RoPE of type '{kind}', whose frequencies may depend on the length of the text; supported "
                         f"are {', '.join(ROPE_TYPES)}")


def _refuse_place(model: Any) -> None:
    parameter = next(model.parameters())
    if parameter.device.type not in ("cpu", "cuda"):
        raise ValueError(f"the model is on {parameter.device}; expected the CPU or a CUDA device")
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) > 1:
        raise ValueError(f"the model's weights are on {', '.join(sorted(devices))}; expected one device")
    if model.dtype not in DTYPES:
        raise ValueError(f"the model computes in {model.dtype}; expected float32, float16 or bfloat16")


def compare(model: Geometry, table: Geometry) -> None:
    """Raises ValueError unless a table for @table fits the model @model. Frequencies may be rounded differently."""
    for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "n_rot"):
        if getattr(model, name) != getattr(table, name):
            raise ValueError(f"the table is for another model: its {name} is {getattr(table, name)}, the model's "
                             f"{getattr(model, name)}")
    if not math.isclose(model.attn_scale, table.attn_scale, rel_tol=FREQUENCY_TOLERANCE):
        raise ValueError(f"the table is for another model: its scale of attention is {table.attn_scale}, the model's "
                         f"{model.attn_scale}")
    for i, (a, b) in enumerate(zip(model.rope_freq, table.rope_freq)):
        if not math.isclose(a, b, rel_tol=FREQUENCY_TOLERANCE):
            raise ValueError(f"the table is for another model: its RoPE frequency {i} is {b}, the model's {a}. Frequencies of a "
                             "model that was converted to 16 bits are rounded: load it with that dtype instead")
