"""libkvcobra-alloc.so.0: statistics of a model's activations. For _calibrate.py; kvcobra-alloc.h describes every call."""
from __future__ import annotations

import errno
from typing import Any, NamedTuple, Optional

import cffi

from . import _arrays, _library
from ._alloc_declarations import DECLARATIONS
from ._client import Geometry, NotCopied, c_path
from ._errors import Error, error

SONAME = "libkvcobra-alloc.so.0"
ENVIRONMENT = "KVCOBRA_ALLOC_LIBRARY"
PAIRS = {"half-split": 0, "interleaved": 1}  # enum kvc_pairs
SIDES = {"k": 0, "v": 1}  # enum kvc_side

ffi: Any = cffi.FFI()  # its types come from DECLARATIONS, where mypy does not see them
ffi.cdef(DECLARATIONS)
_loaded: Any = None


def library() -> Any:
    """The library, loaded at the first call."""
    global _loaded
    if _loaded is None:
        path = _library.path_of(SONAME, ENVIRONMENT)
        try:
            _loaded = ffi.dlopen(path)
        except OSError as e:
            raise Error(errno.ENOENT, f"{path} could not be loaded ({e}). Install the wheel of kvcobra, which has it, or "
                        f"Debian's package libkvcobra-alloc0, or set the environment variable {ENVIRONMENT} to the path of {SONAME}") from None
    return _loaded


def _new(type_name: str, **members: Any) -> Any:
    struct = ffi.new(f"{type_name} *")
    struct.struct_bytes = ffi.sizeof(type_name)
    for name, value in members.items():
        setattr(struct, name, value)
    return struct


class Info(NamedTuple):
    """What statistics hold, as kvc_stats_info in kvcobra-alloc.h."""

    tokens: int
    samples: int
    file_bytes: int


class Statistics(NotCopied):
    """Statistics of one model. A context manager; used by one thread at a time.

    metric: "output", "fisher", which needs add_gradients(), or "mse": squared error, without queries.
    """

    def __init__(self, geometry: Geometry, model_id: bytes, model_name: str, metric: str, n_sink: int, seed: int) -> None:
        self._alloc: Any = None
        self.geometry, self.metric = geometry, metric
        lib = library()
        ret = ffi.new("kvc_alloc **")
        self._check(lib.kvc_alloc_new(ret))
        self._alloc = ret[0]
        name = model_name.encode()[:127].decode(errors="ignore").encode()
        keep = [ffi.new("char[]", name), ffi.new("double[]", list(geometry.rope_freq))]
        options = _new("kvc_stats_options", model_name=keep[0], n_sink=n_sink, seed=seed,
                       metrics=lib.KVC_WITH_OUTPUT if metric == "output" else 0)
        options.model_digest[0:32] = model_id
        g = options.geometry
        g.struct_bytes, g.rope_freq, g.attn_scale = ffi.sizeof("kvc_geometry"), keep[1], geometry.attn_scale
        g.n_layers, g.n_heads, g.n_kv_heads = geometry.n_layers, geometry.n_heads, geometry.n_kv_heads
        g.head_dim, g.n_rot = geometry.head_dim, geometry.n_rot
        stats = ffi.new("kvc_stats **")
        try:
            self._check(lib.kvc_stats_new(self._alloc, options, stats))
        except BaseException:
            self.close()
            raise
        self._stats = stats[0]

    def _check(self, r: int) -> None:
        if r < 0:
            sentence = ffi.string(library().kvc_alloc_error(self._alloc)).decode(errors="replace") if self._alloc else ""
            raise error(-r, sentence)

    def set_output_projection(self, layer: int, wo: Any) -> None:
        """@wo: [n_embd, n_heads * head_dim], as torch.nn.Linear has it."""
        g = self.geometry
        v = _arrays.view(wo, "wo")
        if len(v.shape) != 2 or v.shape[1] != g.n_heads * g.head_dim:
            raise ValueError(f"the output projection of layer {layer} has shape {list(v.shape)}; expected [n_embd, "
                             f"{g.n_heads * g.head_dim}]")
        p = _new("kvc_stats_projection", layer=layer, dtype=v.dtype, wo=_pointer(v), n_embd=v.shape[0], row_stride=v.strides[0],
                 column_stride=v.strides[1])
        self._check(library().kvc_stats_set_output_projection(self._stats, p))

    def add_layer(self, document: int, layer: int, q: Optional[Any], k: Any, v: Any, residual: Optional[Any], pairs: str = "half-split") -> None:
        """One layer of a window that starts at position 0. @q, @k: [tokens, heads, head_dim] after RoPE of @pairs, @q only for metric
        output; @v alike; @residual: [tokens, n_embd]. All of one number type."""
        g = self.geometry
        named = {"q": (q, g.n_heads), "k": (k, g.n_kv_heads), "v": (v, g.n_kv_heads)}
        views = {name: _arrays.check(_arrays.view(x, name), name, (None, n, g.head_dim), "tokens heads head_dim")
                 for name, (x, n) in named.items() if x is not None}
        n_tokens, dtype = views["k"].shape[0], views["k"].dtype
        x = _new("kvc_stats_layer", document=document, layer=layer, dtype=dtype, n=n_tokens, keys=library().KVC_KEYS_AFTER_ROPE,
                 pairs=PAIRS[pairs])
        for name, view in views.items():
            _arrays.check(view, name, (n_tokens, None, None), "tokens heads head_dim", dtype)
            token, head = _arrays.token_head_strides(view, name)
            setattr(x, name, _pointer(view))
            setattr(x, f"{name}_token_stride", token)
            setattr(x, f"{name}_head_stride", head)
        if residual is not None:
            view = _arrays.check(_arrays.view(residual, "residual"), "residual", (n_tokens, None), "tokens n_embd", dtype)
            x.residual, x.n_embd = _pointer(view), view.shape[1]
            x.residual_token_stride = view.strides[0] if n_tokens > 1 else 0
        self._check(library().kvc_stats_add_layer(self._stats, x))

    def add_gradients(self, layer: int, side: str, g: Any, pairs: str = "half-split") -> None:
        """Gradients of log p(y) by the keys or values ("k", "v") of a window that starts at position 0: [tokens, heads, head_dim], by
        keys after RoPE of @pairs. They make metric fisher available."""
        view = _arrays.check(_arrays.view(g, "g"), "g", (None, self.geometry.n_kv_heads, self.geometry.head_dim), "tokens heads head_dim")
        x = _new("kvc_stats_gradients", layer=layer, side=SIDES[side], dtype=view.dtype, n=view.shape[0], keys=library().KVC_KEYS_AFTER_ROPE,
                 pairs=PAIRS[pairs], g=_pointer(view))
        x.token_stride, x.head_stride = _arrays.token_head_strides(view, "g")
        self._check(library().kvc_stats_add_gradients(self._stats, x))

    def add_source(self, digest: bytes, n_bytes: int, tokens: int, windows: int, window: int, by_model: bool = False) -> None:
        """Records a raw text, or what the model wrote."""
        x = _new("kvc_stats_source", bytes=n_bytes, tokens=tokens, windows=windows, window=window, kind=_kind(by_model))
        x.digest[0:32] = digest
        self._check(library().kvc_stats_add_source(self._stats, x))

    def begin_source(self, name: bytes, by_model: bool = False) -> None:
        """Names the source of the windows that follow: the digest of a raw text, or a kind of what the model writes."""
        self._check(library().kvc_stats_begin_source(self._stats, _kind(by_model), name))

    def info(self) -> Info:
        x = _new("kvc_stats_info")
        self._check(library().kvc_stats_get_info(self._stats, x))
        return Info(x.tokens, x.samples, x.file_bytes)

    def save(self, path: str) -> None:
        """The file appears whole or not at all."""
        self._check(library().kvc_stats_save(self._stats, c_path(path, "path")))

    def close(self) -> None:
        if self._alloc is not None:
            self._alloc = library().kvc_alloc_free(self._alloc) or None

    def __enter__(self) -> "Statistics":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _kind(by_model: bool) -> int:
    return int(library().KVC_SOURCE_MODEL if by_model else library().KVC_SOURCE_TEXT)


def _pointer(v: _arrays.View) -> Any:
    return ffi.cast("void *", v.address)
