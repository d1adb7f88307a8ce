"""A growing text: its keys and values, attention to them, and publishing them."""
from __future__ import annotations

from types import TracebackType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence as Items, Tuple, Type

from . import _arrays, _blocks
from ._arrays import Tokens, View
from ._client import Digest, Handle
from ._fetch import Fetch
from ._library import ffi, library, new
from ._model import COUNTED, PUBLISH_ALL, REPEATABLE, Model, sequence_options

KEYS = {"before": 0, "after": 1}
PAIRS = {"half-split": 0, "interleaved": 1}
SIDES = {"k": 0, "v": 1}
AXES = "tokens heads dim"
FETCH_MS_MAX, FETCH_NEVER = 8000, 0xffffffff  # kvc_seq_options of kvcobra.h, KVC_FETCH_NEVER


class Usage(NamedTuple):
    """Bytes of a sequence by purpose, as kvc_usage in kvcobra.h."""

    tokens: int
    numbers: int
    code_bytes: int
    padding_bytes: int
    header_bytes: int
    sink_bytes: int
    tail_bytes: int
    shared_bytes: int
    coded: Tuple[int, int]
    saturated: Tuple[int, int]

    @property
    def true_bpd(self) -> float:
        """All stored bits per number."""
        stored = self.code_bytes + self.padding_bytes + self.header_bytes + self.sink_bytes + self.tail_bytes
        return 8 * stored / self.numbers if self.numbers else 0.0


class Sequence(Handle):
    """An empty sequence of a model.

    salt: anything besides tokens and model that changes keys and values, such as an adapter.
    keys: "before" or "after" RoPE: of keys in append and read, and of queries in attend.
    pairs: the dimensions that RoPE rotates together: "half-split" (i, i + n/2), or "interleaved" (2 i, 2 i + 1).
    publish_all: commit publishes every full chunk, for callers with an exact cache of their own.
    repeatable: attention depends neither on how a prompt was cut nor on a match.
    table: the digest of the table to use; None is the active one.
    counted: matches count neither hits nor misses, because another sequence counts them for the same request.
    fetch_ms: a match waits so long for pages of a disk or of other hosts, up to 8000; 0: not at all; None: the library's default.
    compute_tokens_per_s: at which the caller computes a prompt: a match does not wait for pages that come later; 0: unknown.
    window: that the layers attend to, in tokens: a match needs only the chunks of it, finds the longest text that has all of them, and
    nothing before them can be read or attended to; 0: all tokens.

    Arrays are [tokens, heads, head_dim]; any strides with a contiguous last dimension are read in place.
    """

    def __init__(self, model: Model, salt: bytes = b"", keys: str = "before", pairs: str = "half-split",
                 publish_all: bool = False, repeatable: bool = False, table: Optional[Digest] = None,
                 counted: bool = False, fetch_ms: Optional[int] = None, compute_tokens_per_s: int = 0, window: int = 0) -> None:
        options, _owners = sequence_options(salt, table, window)
        options.keys, options.pairs = _choice(keys, KEYS, "keys"), _choice(pairs, PAIRS, "pairs")
        options.flags = PUBLISH_ALL * bool(publish_all) + REPEATABLE * bool(repeatable) + COUNTED * bool(counted)
        if fetch_ms is not None:
            if not 0 <= fetch_ms <= FETCH_MS_MAX:
                raise ValueError(f"fetch_ms is {fetch_ms}; expected 0..{FETCH_MS_MAX}")
            options.fetch_ms = fetch_ms or FETCH_NEVER
        if not 0 <= compute_tokens_per_s < 1 << 32:
            raise ValueError(f"compute_tokens_per_s is {compute_tokens_per_s}; expected 0..{(1 << 32) - 1}")
        options.compute_tokens_per_s = compute_tokens_per_s
        ret = ffi.new("kvc_seq **")
        model.client.call("kvc_seq_new_with", model.handle, options, ret)
        self._adopt(model, ret[0])

    def _adopt(self, model: Model, handle: Any) -> None:
        super().__init__(model.client, handle, "kvc_seq_free")
        self._model = model
        self._fetch: Optional[Fetch] = None

    @property
    def model(self) -> Model:
        return self._model

    @property
    def handle(self) -> Any:
        if self._fetch is not None:
            raise ValueError("a fetch of the sequence is open: close the Fetch before other calls")
        return super().handle

    # ---- published chunks ----

    def match(self, tokens: Tokens) -> int:
        """Starts from published chunks of @tokens. Returns the new length: a multiple of 64, below len(tokens)."""
        ids, ret = _arrays.token_array(tokens), ffi.new("size_t *")
        self._client.call("kvc_seq_match", self.handle, ids, len(ids), ret)
        return int(ret[0])

    def fetch(self, tokens: Tokens, leave: int = 1) -> Fetch:
        """Starts a match that leaves the last @leave tokens for the caller to compute, and does not wait for it."""
        self._fetch = Fetch(self, tokens, leave)
        return self._fetch

    def _fetch_ended(self, fetch: Fetch) -> None:
        if self._fetch is fetch:
            self._fetch = None

    def commit(self, tokens: Tokens) -> int:
        """Publishes whole chunks. @tokens: the ids of the whole sequence. Returns how many tokens are now published."""
        ids, ret = _arrays.token_array(tokens), ffi.new("size_t *")
        self._client.call("kvc_seq_commit", self.handle, ids, len(ids), ret)
        return int(ret[0])

    # ---- keys and values ----

    def append(self, layer: int, k: Any, v: Any) -> None:
        """Stores keys and values of the next tokens of one layer. @k, @v: [tokens, KV heads, head_dim]."""
        append_batch(layer, [self], [k], [v])

    def attend(self, layer: int, q: Any, out: Any = None, window: int = 0) -> Any:
        """Attention of the newest tokens of one layer. @q, @out: [tokens, query heads, head_dim]. Returns @out, or an array
        like @q if that is None."""
        return attend_batch(layer, [self], [q], None if out is None else [out], window)[0]

    def read(self, layer: int, side: str, first: int, n: int, out: Any = None) -> Any:
        """Decodes positions @first .. @first + @n - 1 of side "k" or "v" into @out: float32 [n, KV heads, head_dim] without
        gaps. Returns @out, or if that is None a new array of numpy, of torch for a client on a GPU."""
        shape = (n, self._model.n_kv_heads, self._model.geometry.head_dim)
        if out is None:
            out = self._client.empty(shape)
        v = _arrays.check(_arrays.view(out, "out", self._client.gpu), "out", shape, AXES, _arrays.F32, writable=True)
        if _arrays.token_head_strides(v, "out") != (0, 0):
            raise ValueError(f"out has strides {list(v.strides)}; expected an array without gaps")
        self._client.call("kvc_seq_read", self.handle, layer, _choice(side, SIDES, "side"), first, n,
                          ffi.cast("float *", v.address))
        return out

    def read_blocks(self, first: int, n: int, keys: Optional[Items[Any]], values: Optional[Items[Any]],
                    blocks: Any = None) -> None:
        """Decodes positions @first .. @first + @n - 1 of all layers into a cache of the caller.

        keys, values: one array per layer, or None for a layer or a side that is not read. All arrays of a side have one
        shape, one dtype and the same strides, which may be any positive ones:
        [blocks, tokens per block, KV heads, head_dim]: position p goes to token p % (tokens per block) of block
        @blocks[p // (tokens per block)], or without @blocks of block p // (tokens per block);
        [tokens, KV heads, head_dim]: position @first goes to token 0.
        blocks: integers, at least one for each block up to the last position.
        """
        geometry = self._model.geometry
        for struct, _owners in _blocks.destinations(geometry.n_layers, self._model.n_kv_heads, geometry.head_dim, first, n,
                                                    keys, values, blocks, self._client.gpu):
            self._client.call("kvc_seq_read_blocks", self.handle, first, n, struct)

    # ---- the sequence ----

    def truncate(self, n: int) -> int:
        """Keeps the first @n tokens, or whole chunks before @n. Returns the new length."""
        ret = ffi.new("size_t *")
        self._client.call("kvc_seq_truncate", self.handle, n, ret)
        return int(ret[0])

    def fork(self) -> "Sequence":
        """A second sequence with the same contents; packed pages are shared."""
        ret = ffi.new("kvc_seq **")
        self._client.call("kvc_seq_fork", self.handle, ret)
        other = Sequence.__new__(Sequence)
        other._adopt(self._model, ret[0])
        return other

    def __deepcopy__(self, memo: Any) -> "Sequence":
        return self.fork()

    @property
    def length(self) -> int:
        """The number of tokens that every layer has."""
        return int(library().function("kvc_seq_length")(self.handle))

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True  # an empty sequence is not nothing

    @property
    def usage(self) -> Usage:
        usage = new("kvc_usage")
        self._client.call("kvc_seq_get_usage", self.handle, usage)
        members = {name: getattr(usage, name) for name in Usage._fields[:-2]}
        return Usage(coded=tuple(usage.coded), saturated=tuple(usage.saturated), **members)

    def close(self) -> None:
        if self._fetch is not None:
            self._fetch.close()
        super().close()

    def __enter__(self) -> "Sequence":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()


def _choice(value: str, choices: Dict[str, int], name: str) -> int:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, choices))}")
    return choices[value]


def _items(sequences: Items[Sequence], arrays: Items[Items[Any]], name: str) -> Model:
    """Checks the lists of a batch. Returns the first model."""
    if not sequences:
        raise ValueError(f"{name} of no sequence")
    if any(len(a) != len(sequences) for a in arrays):
        raise ValueError(f"{len(sequences)} sequences, but {', '.join(str(len(a)) for a in arrays)} arrays; expected as many")
    if any(s.client is not sequences[0].client for s in sequences):
        raise ValueError("the sequences of a batch must be of one client")
    return sequences[0].model


def append_batch(layer: int, sequences: Items[Sequence], k: Items[Any], v: Items[Any]) -> None:
    """Sequence.append() for several sequences of one client in one call. After a failure no sequence has changed."""
    _items(sequences, (k, v), "append_batch")
    items = ffi.new("kvc_append_item[]", len(sequences))
    views: List[View] = []
    dtype: Optional[int] = None
    for i, (sequence, item) in enumerate(zip(sequences, items)):
        shape = (None, sequence.model.n_kv_heads, sequence.model.geometry.head_dim)
        k_view = _arrays.check(_arrays.view(k[i], "k", sequence.client.gpu), "k", shape, AXES, dtype)
        dtype = k_view.dtype
        v_view = _arrays.check(_arrays.view(v[i], "v", sequence.client.gpu), "v", (k_view.shape[0],) + shape[1:], AXES, dtype)
        views += (k_view, v_view)
        item.struct_bytes, item.seq, item.n_new = ffi.sizeof("kvc_append_item"), sequence.handle, k_view.shape[0]
        item.k, item.v = _arrays.pointer(k_view), _arrays.pointer(v_view)
        item.k_token_stride, item.k_head_stride = _arrays.token_head_strides(k_view, "k")
        item.v_token_stride, item.v_head_stride = _arrays.token_head_strides(v_view, "v")
    sequences[0].client.call("kvc_seq_append_batch", items, len(sequences), layer, dtype)


def attend_batch(layer: int, sequences: Items[Sequence], q: Items[Any], out: Optional[Items[Any]] = None,
                 window: int = 0) -> List[Any]:
    """Sequence.attend() for several sequences of one client in one call. Returns @out, or new arrays like @q."""
    if out is None:
        out = [_empty_like(x) for x in q]
    _items(sequences, (q, out), "attend_batch")
    items = ffi.new("kvc_attend_item[]", len(sequences))
    views: List[View] = []
    for i, (sequence, item) in enumerate(zip(sequences, items)):
        shape = (None, sequence.model.n_heads, sequence.model.geometry.head_dim)
        q_view = _arrays.check(_arrays.view(q[i], "q", sequence.client.gpu), "q", shape, AXES)
        out_view = _arrays.check(_arrays.view(out[i], "out", sequence.client.gpu), "out", q_view.shape, AXES, q_view.dtype, writable=True)
        views += (q_view, out_view)
        item.struct_bytes, item.seq, item.n_q = ffi.sizeof("kvc_attend_item"), sequence.handle, q_view.shape[0]
        item.q, item.out, item.dtype = _arrays.pointer(q_view), _arrays.pointer(out_view), q_view.dtype
        item.q_token_stride, item.q_head_stride = _arrays.token_head_strides(q_view, "q")
        item.out_token_stride, item.out_head_stride = _arrays.token_head_strides(out_view, "out")
    options = new("kvc_attend_options", window=window)
    sequences[0].client.call("kvc_seq_attend_batch", items, len(sequences), layer, options)
    return list(out)


def _empty_like(x: Any) -> Any:
    """An array of the shape and number type of @x, made by the library that @x is of."""
    module = type(x).__module__.split(".")[0]
    if module == "torch":
        import torch
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if module == "numpy":
        import numpy
        return numpy.empty(x.shape, x.dtype)
    raise TypeError(f"out is missing: an array like a {type(x).__name__} cannot be made here")
