"""A language model: a client bound to one geometry and to the active table of that model."""
from __future__ import annotations

import os
from types import TracebackType
from typing import Any, NamedTuple, Optional, Tuple, Type, Union

from . import _arrays
from ._arrays import Tokens
from ._client import Client, Digest, Geometry, Handle
from ._library import ffi, new, text


PUBLISH_ALL, REPEATABLE, COUNTED = 1, 2, 4  # KVC_SEQ_* of kvcobra.h


EXACT_TYPES = {"float32": 1, "float16": 2, "bfloat16": 3}  # enum kvc_exact of kvcobra.h
EXACT_AFTER_ROPE, EXACT_INTERLEAVED = 4, 8


def exact_form(dtype: Any, keys: str = "after", pairs: str = "half-split") -> int:
    """What an engine's own cache holds, for Model(exact=...). @dtype: of torch or numpy, or its name; @keys, @pairs: as in Sequence."""
    name = str(dtype).rpartition(".")[2]
    if name not in EXACT_TYPES or keys not in ("before", "after") or pairs not in ("half-split", "interleaved"):
        raise ValueError(f"{dtype}, keys {keys!r} and pairs {pairs!r}: expected one of {', '.join(EXACT_TYPES)}, 'before' or 'after', and "
                         "'half-split' or 'interleaved'")
    return EXACT_TYPES[name] + EXACT_AFTER_ROPE * (keys == "after") + EXACT_INTERLEAVED * (pairs == "interleaved")


class ModelInfo(NamedTuple):
    """The active table, as kvc_model_info in kvcobra.h. exact: 0, or the form of an exact table."""

    table_digest: bytes
    revision: int
    bpd_code: float
    page_bytes: int
    first_page_bytes: int
    n_sink: int
    kernel: str
    exact: int


class ModelFit(NamedTuple):
    """How well a table fits, as kvc_model_fit in kvcobra.h. Pairs are of keys and of values."""

    tokens: int
    error: Tuple[float, float]
    expected_error: Tuple[float, float]
    coded: Tuple[int, int]
    saturated: Tuple[int, int]
    expected_saturated: Tuple[float, float]


class Model(Handle):
    """A model of a client.

    model_id: the model's digest, 32 bytes or hexadecimal digits, of which the first are enough for a model that the daemon has
    a table for; None: that of @table, or the only model that the daemon has a table for.
    geometry: None: that of @table, or of the daemon's active table.
    n_positions: the longest sequence; 0 is 65536.
    table: bytes or path of a table file: all pages stay in this process (embedded).
    shard: (first KV head, number of KV heads); None is all heads.
    exact: of exact_form(): while the daemon has no active table, pages hold the bytes of the caller's own cache, if its configuration
    allows that. Sequences then have this form, and attend() is refused. 0: a table only.
    """

    def __init__(self, client: Client, model_id: Optional[Digest] = None, geometry: Optional[Geometry] = None,
                 n_positions: int = 0, table: Union[bytes, str, "os.PathLike[str]", None] = None,
                 shard: Optional[Tuple[int, int]] = None, exact: int = 0) -> None:
        client.handle  # raises if the client is closed
        table_bytes = _table_bytes(table)
        digest: Optional[bytes] = None
        if table_bytes is None:
            digest = client.find_model(model_id)
        elif model_id is not None:
            digest = _arrays.digest(model_id, "model_id")
        if table_bytes is not None and (digest is None or geometry is None):
            table_digest, table_geometry = client.table_geometry(table_bytes)
            digest, geometry = digest or table_digest, geometry or table_geometry
        if geometry is None:
            assert digest is not None
            geometry = client.geometry(digest)
        if len(geometry.rope_freq) * 2 != geometry.n_rot:
            raise ValueError(f"the geometry has {len(geometry.rope_freq)} RoPE frequencies; expected {geometry.n_rot // 2}")
        first, n_here = (0, geometry.n_kv_heads) if shard is None else shard
        frequencies = ffi.new("double[]", geometry.rope_freq)
        model_id_struct = new("kvc_model_id", first_kv_head=first, n_kv_heads_here=n_here, n_positions=n_positions,
                              exact=exact)
        model_id_struct.model_digest[0:32] = digest
        g = model_id_struct.geometry
        g.struct_bytes = ffi.sizeof("kvc_geometry")
        g.rope_freq = frequencies
        for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "n_rot", "attn_scale"):
            setattr(g, name, getattr(geometry, name))
        ret = ffi.new("kvc_model **")
        if table_bytes is None:
            client.call("kvc_model_open", client.handle, model_id_struct, ret)
        else:
            client.call("kvc_model_open_table", client.handle, model_id_struct, ffi.from_buffer(table_bytes), len(table_bytes),
                        ret)
        super().__init__(client, ret[0], "kvc_model_free")
        self._digest, self._geometry, self._shard = digest, geometry, (first, n_here)

    @property
    def model_id(self) -> bytes:
        assert self._digest is not None
        return self._digest

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def shard(self) -> Tuple[int, int]:
        """(first KV head, number of KV heads) of this model."""
        return self._shard

    @property
    def n_kv_heads(self) -> int:
        """KV heads of this shard."""
        return self._shard[1]

    @property
    def n_heads(self) -> int:
        """Query heads of this shard."""
        return self._shard[1] * (self._geometry.n_heads // self._geometry.n_kv_heads)

    @property
    def info(self) -> ModelInfo:
        """The table that the next sequence will use."""
        info = new("kvc_model_info")
        self._client.call("kvc_model_get_info", self.handle, info)
        return ModelInfo(bytes(info.table_digest), info.revision, info.bpd_code, info.page_bytes, info.first_page_bytes,
                         info.n_sink, text(info.kernel), info.exact)

    def peek(self, tokens: Tokens, salt: bytes = b"", table: Optional[Digest] = None, repeatable: bool = False, window: int = 0) -> int:
        """An estimate of how many tokens a match of a sequence with these options finds. Leases nothing."""
        ids, ret = _arrays.token_array(tokens), ffi.new("size_t *")
        options, _owners = sequence_options(salt, table, window)
        options.flags = REPEATABLE * bool(repeatable)
        self._client.call("kvc_model_peek", self.handle, options, ids, len(ids), ret)
        return int(ret[0])

    def prefetch(self, tokens: Tokens, salt: bytes = b"", table: Optional[Digest] = None, repeatable: bool = False,
                 fetch_ms: int = 0, window: int = 0) -> int:
        """Starts to bring a prompt's chunks from the disk to memory, and does not wait. @fetch_ms: how long the daemon may take;
        0 is 1000. Returns a number for cancel_prefetch(), or 0: there is nothing to fetch."""
        ids, ret = _arrays.token_array(tokens), ffi.new("uint64_t *")
        options, _owners = sequence_options(salt, table, window)
        options.flags, options.fetch_ms = REPEATABLE * bool(repeatable), fetch_ms
        self._client.call("kvc_model_prefetch", self.handle, options, ids, len(ids), ret)
        return int(ret[0])

    def cancel_prefetch(self, prefetch: int = 0) -> None:
        """Drops what was not sent yet of a prefetch; 0: of all. What the daemon fetches already still arrives."""
        self._client.call("kvc_model_prefetch_cancel", self.handle, prefetch)

    def report(self, share_ppm: int, moments: bool = False) -> None:
        """Measures @share_ppm millionths of new chunks, for `fit` and for the daemon."""
        self._client.call("kvc_model_report", self.handle, new("kvc_report_options", share_ppm=share_ppm, moments=moments))

    @property
    def fit(self) -> ModelFit:
        """How well the table fits what this client encoded since report()."""
        fit = new("kvc_model_fit")
        self._client.call("kvc_model_get_fit", self.handle, fit)
        return ModelFit(fit.tokens, *((getattr(fit, name)[0], getattr(fit, name)[1]) for name in ModelFit._fields[1:]))

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()


def _table_bytes(table: Any) -> Optional[bytes]:
    if table is None or isinstance(table, bytes):
        return table
    with open(table, "rb") as file:
        return file.read()


def sequence_options(salt: bytes, table: Optional[Digest], window: int) -> Tuple[Any, Any]:
    """A kvc_seq_options with salt, table and window, and the memory that it points to."""
    if not 0 <= window < 1 << 32:
        raise ValueError(f"window is {window}; expected 0..{(1 << 32) - 1}")
    if not isinstance(salt, (bytes, bytearray)):
        raise TypeError(f"salt is a {type(salt).__name__}; expected bytes")
    options = new("kvc_seq_options", window=window)
    c_salt = ffi.new("uint8_t[]", bytes(salt)) if salt else ffi.NULL
    c_table = ffi.NULL if table is None else ffi.new("uint8_t[]", _arrays.digest(table, "table"))
    options.salt, options.salt_bytes, options.table_digest = c_salt, len(salt), c_table
    return options, (c_salt, c_table)
