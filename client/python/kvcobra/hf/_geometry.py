"""The geometry of a transformers model, and the models that are refused.

A model is admitted by a proof (_proof.py), not by its name: a wrong order of the dimensions of RoPE would make pages that are
wrong for every other client. The configuration tells the reason of many refusals better than the proof, so it is asked first.
"""
from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Sequence as Items, Tuple

import torch

from .._client import Geometry
from .._groups import HEADS, LATENT, ROPE, numbers
from ._proof import Layer, Proof, decoder_class, prove, rotations

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# the model computes its frequencies in binary32: a few roundings
FREQUENCY_TOLERANCE = 1e-6


class Group(NamedTuple):
    """Layers of a model whose attention is of one kind. layers: their numbers in the model; in @geometry they are 0, 1, 2, ... part:
    what of the layers' cache the group has (vectors() of _groups.py)."""

    name: str
    layers: Tuple[int, ...]
    geometry: Geometry
    kind: Layer
    part: str = HEADS

    @property
    def factor(self) -> float:
        """The model's rotated keys are those of the group times it."""
        return 1.0 if self.part == LATENT else self.kind.factor


def model_geometry(model: Any) -> Geometry:
    """The geometry of @model, whose layers are all in one group. Raises ValueError, with the reason, for any other model."""
    return one_group(model_groups(model), model_proof(model)).geometry


def one_group(groups: List[Group], proof: Proof) -> Group:
    """The one group that all layers are in and that has no window. Raises ValueError, with the reason, if there is none."""
    refuse_states(proof)
    if len(groups) > 1:
        raise ValueError(f"the layers of the model have attention of {len(groups)} kinds: {'; '.join(describe(g) for g in groups)}")
    group = groups[0]
    if group.kind.window is not None:
        raise ValueError(f"the model has a sliding window of {group.kind.window} tokens, which is not supported")
    return group


def cache_groups(model: Any) -> List[Group]:
    """The groups of a model whose layers all have keys and values. Raises ValueError, with the reason, for any other model."""
    groups = model_groups(model)
    refuse_states(model_proof(model))
    return groups


def refuse_states(proof: Proof) -> None:
    without = [i for i, layer in enumerate(proof.layers) if layer is None]
    if without:
        raise ValueError(f"layers {numbers(without)} of the model keep a state of the whole text instead of keys and values, which pages "
                         "do not hold")


def needs_dense(groups: List[Group]) -> str:
    """What libkvcobra's own attention lacks for @groups; "": nothing."""
    parts = (["capped scores"] * any(g.kind.cap for g in groups) + ["learned sinks"] * any(g.kind.sinks for g in groups)
             + ["latent attention (MLA)"] * any(g.kind.latent for g in groups))
    return " and ".join(parts)


def model_groups(model: Any) -> List[Group]:
    """The groups of layers of @model with attention. Raises ValueError, with the reason, if its attention cannot be described."""
    refuse_kinds(model)
    decoder = find_decoder(model)
    proof = model_proof(model)
    _refuse_place(model)
    _check_rotations(decoder, proof)
    return groups_of(decoder.config, proof)


def model_proof(model: Any) -> Proof:
    decoder = find_decoder(model)
    return prove(decoder.config, type(decoder))


def groups_of(config: Any, proof: Proof) -> List[Group]:
    """The groups of a model with the text configuration @config, in the order of their first layers."""
    of_kind: Dict[Layer, List[int]] = {}
    for i, layer in enumerate(proof.layers):
        if layer is not None:
            of_kind.setdefault(layer, []).append(i)
    rotated = any(kind.frequencies for kind in of_kind)
    groups: List[Group] = []
    for kind, layers in of_kind.items():
        for part in (LATENT, ROPE) if kind.latent else (HEADS,):
            name = _name(kind, rotated, part)
            if any(g.name == name for g in groups):
                name += f"-{sum(g.name.startswith(name) for g in groups) + 1}"
            groups.append(Group(name, tuple(layers), _geometry(config, kind, len(layers), part), kind, part))
    return groups


def _name(kind: Layer, rotated: bool, part: str) -> str:
    """The name of a group. Digests of groups depend on it."""
    words = [part] * bool(part) + ([f"window-{kind.window}"] if kind.window else ["full"] * (part == HEADS))
    return "-".join(words + ["nope"] * (rotated and not kind.frequencies))


def _geometry(config: Any, kind: Layer, n_layers: int, part: str) -> Geometry:
    n_heads = config.num_attention_heads
    frequencies = _exact(config, kind.frequencies)
    if part == LATENT:
        return Geometry(n_layers, 1, 1, kind.latent // 2, 0, kind.scale, ())
    n_kv_heads = getattr(config, "num_key_value_heads", None) or n_heads
    return Geometry(n_layers, *((1, 1) if part == ROPE else (n_heads, n_kv_heads)), kind.head_dim, 2 * len(frequencies),
                    kind.scale * kind.factor * kind.factor, frequencies)


def _exact(config: Any, rounded: Tuple[float, ...]) -> Tuple[float, ...]:
    """RoPE frequencies. Where the formula is known they are computed in binary64, as other programs do, so that statistics and
    tables of this model fit those of others to the bit. The model computes in binary32."""
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in (rope, *(x for x in rope.values() if isinstance(x, dict))):
        theta = kind.get("rope_theta")
        if theta is None or kind.get("rope_type", "default") != "default":
            continue
        exact = tuple(float(theta) ** (-i / len(rounded)) for i in range(len(rounded)))
        if _close(exact, rounded):
            return exact
    return rounded


def _close(a: Items[float], b: Items[float]) -> bool:
    return len(a) == len(b) and all(math.isclose(x, y, rel_tol=FREQUENCY_TOLERANCE) for x, y in zip(a, b))


def _check_rotations(decoder: Any, proof: Proof) -> None:
    """The model was changed after it was made if its rotation is not that of its configuration."""
    real = rotations(decoder)
    for layer in proof.layers:
        if layer is None or not layer.frequencies:
            continue
        if not any(_close(r.frequencies, layer.frequencies) and math.isclose(r.factor, layer.factor) for r in real):
            raise ValueError("the model's RoPE frequencies are not those of its configuration. Frequencies of a model that was converted to "
                             "16 bits are rounded: load it with that dtype instead")


def describe(group: Group) -> str:
    """One line: the layers of a group and what the proof measured of their attention."""
    kind, g = group.kind, group.geometry
    if group.part == LATENT:
        return f"layers {numbers(group.layers)} ({group.name}): {kind.latent} numbers that keys and values of all heads are made of (MLA)"
    rope = "no RoPE"
    if kind.frequencies:
        rope = f"{kind.pairs} RoPE of {g.n_rot} of {g.head_dim} dimensions"
        if kind.factor != 1.0:
            rope += f" times {kind.factor:.6g}"
    parts = ["one key for all heads"] * (group.part == ROPE) + [rope, f"scale {kind.scale:.6g}"]
    if kind.norm != "none":
        parts.append(f"norm {kind.norm} RoPE")
    if kind.window is not None:
        parts.append(f"window of {kind.window} tokens")
    if kind.cap:
        parts.append(f"scores capped at {kind.cap:g}")
    if kind.sinks:
        parts.append("learned sinks")
    return f"layers {numbers(group.layers)} ({group.name}): {', '.join(parts)}"


def report(folder: str) -> Tuple[List[str], str]:
    """What the proof shows of the model of config.json in @folder, as lines, and the reason why it is refused; "": it is not."""
    from transformers import AutoConfig

    lines: List[str] = []
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        proof = prove(config, decoder_class(config))
        groups = groups_of(config, proof)
        lines = [describe(group) for group in groups]
        lines.append(f"measured on a copy: rotation within {proof.rotation_error:.0e}, attention within {proof.attention_error:.0e}")
        refuse_states(proof)
        outside = needs_dense(groups)
        if outside:
            lines.append(f"a KvCobraCache keeps dense keys, since the model has {outside}")
    except ValueError as e:
        return lines, str(e)
    return lines, ""


def find_decoder(model: Any) -> Any:
    """The module that has the layers."""
    decoder = (model.get_decoder() if hasattr(model, "get_decoder") else None) or model
    return decoder if hasattr(decoder, "layers") else getattr(decoder, "model", decoder)


def refuse_kinds(model: Any) -> None:
    if type(model).__name__ == "OptimizedModule":
        raise ValueError("the model is wrapped by torch.compile(), which cannot trace calls of libkvcobra: pass the model itself")
    implementation = getattr(getattr(model, "generation_config", None), "cache_implementation", None)
    if implementation is not None:
        raise ValueError(f"the model's generation_config asks for cache_implementation={implementation!r}: static and quantised "
                         "caches cannot be combined with this one; set it to None")


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
