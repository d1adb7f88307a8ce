"""KvCobraCache: a Cache of transformers whose layers keep keys and values in sequences of libkvcobra."""
from __future__ import annotations

import copy
import errno
import math
import weakref
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from .. import Client, Error, Model, Sequence, _arrays, append_batch, attend_batch
from .._calibrate import folder_model_id, model_folder
from .._client import Digest
from .._gpus import host_codec
from .._groups import FULL, HEADS, group_digest, numbers
from .._model import exact_form
from . import _attention, _geometry
from ._dense import DenseRows
from ._rows import Part, Rows, log
from ._sequences import Served

Tables = Union[bytes, str, Dict[str, Union[bytes, str]], None]

# errors of a daemon that is absent, has no table for the model, or cannot serve it now
WITHOUT = (errno.ENOENT, errno.ECONNREFUSED, errno.EACCES, errno.ENOTCONN, errno.ENODATA, errno.ESHUTDOWN, errno.EAGAIN,
           errno.EDQUOT, errno.EMFILE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE)
# arguments of attention that change it; None or False: not used
UNSUPPORTED = ("output_attentions", "softcap", "s_aux", "position_bias", "cu_seq_lens_q")


class KvCobraLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer. Keys and values go to the sequences in attend(), which knows the plan of the forward pass."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, rows: Rows, index: int, config: Any) -> None:
        super().__init__()
        self._rows, self._index, self._config = rows, index, config
        self._dynamic: Any = None
        self.columns = 0
        self.is_initialized = True

    @property
    def plain(self) -> Any:
        """The layer of a cache that continues without libkvcobra."""
        if self._dynamic is None:
            self._dynamic = DynamicLayer()
            dense = self._rows.dense.pop(self._index, None)
            if dense is not None:
                self._dynamic.update(*dense)
        return self._dynamic

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Sequences are created when the number of rows is known."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        rows = self._rows
        if rows.is_plain:
            states: Tuple[torch.Tensor, torch.Tensor] = self.plain.update(key_states, value_states)
            return states
        if self._config._attn_implementation != _attention.NAME:
            raise RuntimeError(f"the model's attention is '{self._config._attn_implementation}': with a KvCobraCache it must be "
                               f"'{_attention.NAME}'; call model.set_attn_implementation('{_attention.NAME}')")
        if rows.plan is None or rows.plan.before != self.columns or rows.plan.n_columns != key_states.shape[2]:
            raise RuntimeError("the cache does not know the input of this forward pass, or the last one was interrupted. It works "
                               "with the model that it was made from; after an interruption call reset()")
        if rows.pending is not None:
            raise RuntimeError("the model changed its keys between cache and attention, which a KvCobraCache does not support")
        rows.pending = self._index
        setattr(key_states, _attention.TAG, self)
        return key_states, value_states

    def attend(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: Optional[float],
               dropout: float, kwargs: Dict[str, Any]) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
        """Appends the new tokens and attends to all. Returns all keys and values, and no result, if the cache became plain."""
        rows, plan = self._rows, self._rows.plan
        assert plan is not None
        kind = rows.group_of(self._index).group.kind
        self._check(module, scaling, dropout, kwargs)
        k, v, q = (x.detach().transpose(1, 2) for x in (key, value, query))  # [rows, tokens, heads, head_dim]
        if kind.factor != 1.0:
            k, q = k / kind.factor, q / kind.factor
        parts = [p for p in plan.parts if p.first < plan.n_columns]
        if not self._append(parts, k, v):
            rows.go_plain(plan.before)
            return (*self.plain.update(key, value), None)
        rows.pending = None
        self.columns += plan.n_columns
        out = torch.zeros(q.shape, dtype=q.dtype)
        if parts:
            group, layer = rows.places[self._index][0]
            attend_batch(layer, [p.row.sequence.parts[group] for p in parts], [q[p.number, p.first:] for p in parts],
                         [out[p.number, p.first:] for p in parts], kind.window or 0)
        return key, value, out

    def _append(self, parts: List[Part], k: torch.Tensor, v: torch.Tensor) -> bool:
        """False, without a change, if the arena has no room for this piece."""
        new = [(p, p.first + p.n_stored) for p in parts if p.first + p.n_stored < k.shape[1]]
        group, layer = self._rows.places[self._index][0]
        arguments = ([p.row.sequence.parts[group] for p, _ in new], [k[p.number, at:] for p, at in new], [v[p.number, at:] for p, at in new])
        for attempt in range(2):
            try:
                if new:
                    append_batch(layer, *arguments)
                return True
            except Error as e:
                # the first layer of a group claims the room for all of them; publishing whole chunks frees the arena
                if e.errno != errno.ENOSPC or layer != 0:
                    raise
                if attempt == 0:
                    self._rows.commit()
                elif self._index != 0:
                    raise  # earlier layers have the piece, so the cache cannot go on without it
                else:
                    self._rows.say("full", "the cache continues without kvcobra, because a piece of the prompt is larger than the "
                                   f"client's arena (generate() has prefill_chunk_size): {e.strerror}")
        return False

    def _check(self, module: Any, scaling: Optional[float], dropout: float, kwargs: Dict[str, Any]) -> None:
        """Raises if this is not the attention that libkvcobra computes."""
        group = self._rows.group_of(self._index).group
        if torch.compiler.is_compiling():
            raise RuntimeError("torch.compile() cannot trace calls of libkvcobra")
        if module.training or dropout:
            raise ValueError("the model is being trained: a KvCobraCache has no gradients and no dropout; call model.eval()")
        for name in UNSUPPORTED:
            if kwargs.get(name) not in (None, False):
                raise ValueError(f"attention with {name} is not supported")
        if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
            raise ValueError("attention that is not causal is not supported")
        if scaling is None or not math.isclose(scaling, group.kind.scale, rel_tol=_geometry.FREQUENCY_TOLERANCE):
            raise ValueError(f"the scale of attention of layer {self._index} is {scaling}; expected {group.kind.scale}")
        window = kwargs.get("sliding_window")
        if window is not None and window != group.kind.window and (group.kind.window is not None or window < self.columns):
            raise ValueError(f"layer {self._index} has a window of {window} tokens; expected {group.kind.window or 'none'}")

    def fork(self, rows: Rows) -> "KvCobraLayer":
        """The same layer of a cache with the rows @rows."""
        layer = KvCobraLayer(rows, self._index, self._config)
        layer.columns, layer._dynamic = self.columns, copy.deepcopy(self._dynamic)
        return layer

    # ---- what transformers asks a layer ----

    def get_seq_length(self) -> int:
        return int(self.plain.get_seq_length()) if self._rows.is_plain else self.columns

    def get_mask_sizes(self, query_length: Any) -> Tuple[int, int]:
        """@query_length: a number; transformers 5.2 passes the tensor of positions."""
        n = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.get_seq_length() + n, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    @property
    def batch_size(self) -> int:
        return len(self._rows.rows) or -1


def _digest_of(model_id: Optional[Digest], group: _geometry.Group, n_groups: int) -> Optional[Digest]:
    """What names the tables and pages of @group. @model_id: of the model; None: the table tells it."""
    if model_id is None or (n_groups == 1 and group.name == FULL):
        return model_id
    return group_digest(_arrays.digest(model_id, "model_id"), group.name, n_groups)


def _table_of(table: Tables, group: _geometry.Group, n_groups: int) -> Union[bytes, str, None]:
    if table is None or (n_groups == 1 and not isinstance(table, dict)):
        return table  # type: ignore[return-value]
    if not isinstance(table, dict) or group.name not in table:
        raise ValueError(f"the model has {n_groups} groups of layers: table must be a dict with the name of each, and one for "
                         f"'{group.name}' is missing")
    return table[group.name]


def _open(client: Client, digest: Optional[Digest], table: Union[bytes, str, None], group: _geometry.Group,
          exact: Optional[torch.dtype]) -> Model:
    """The model of a group, with its table. Without one, if @exact is the number type of the cache, with an exact table."""
    try:
        return Model(client, digest, table=table)
    except Error as e:
        # a factor of the rotated keys, and the halves of MLA, are no bytes of the engine's cache
        if exact is None or e.errno not in (errno.ENODATA, errno.ENOENT) or group.factor != 1.0 or group.part != HEADS:
            raise
    return Model(client, digest, group.geometry, exact=exact_form(exact, "after", group.kind.pairs))


class KvCobraCache(Cache):  # type: ignore[misc]
    """A cache for one model: past_key_values of its forward() and generate().

    client: a client, or None: kvcobrad at the default path. model_id: the model's digest, or its first digits; None: what
    `kvcobra model-id` prints for the folder that the model was loaded from.
    table: bytes or path of a table file, for an embedded client; for a model with several groups of layers a dict of them by the
    names that `python -m kvcobra prove` prints.
    salt: anything besides tokens and model that changes keys and values, such as an adapter.
    repeatable: attention depends neither on how a prompt was cut nor on a match.
    table_digest: the table to use; None is the active one.
    dense: False: the model attends to the codes, and its attention becomes "kvcobra", which is "sdpa" for other caches. True: it
    keeps its attention and dense keys and values; only match() and commit() use pages. None is False for a model on the CPU, if the
    daemon has a table for it, else True. On a GPU only True is possible; @client is then one with this GPU.

    Raises ValueError, with the reason, if the model cannot be used or differs from the table. If the daemon has no table for the model
    and its configuration has exact = yes, pages have the model's own keys and values, to the bit. Else, and without a daemon, the cache is
    a plain one: one line of the log says why.
    """

    def __init__(self, model: Any, client: Optional[Client] = None, model_id: Optional[Digest] = None,
                 table: Tables = None, salt: bytes = b"", repeatable: bool = False,
                 table_digest: Optional[Digest] = None, dense: Optional[bool] = None) -> None:
        groups = _geometry.cache_groups(model)
        device = next(model.parameters()).device
        outside = _geometry.needs_dense(groups)
        if dense is None and (device.type == "cuda" or outside):
            dense = True
        if outside and dense is False:
            raise ValueError(f"the model has {outside}, which attention to codes does not compute: leave out dense=False")
        if device.type == "cuda" and dense is False:
            raise ValueError(f"the model is on {device}: attention to codes runs on the CPU only, leave out dense=False")
        if dense and repeatable:
            raise ValueError("repeatable is about attention to codes, and this cache has dense keys")
        self._own_client: Optional[Client] = None
        if model_id is None and table is None:
            model_id = folder_model_id(model_folder(model))
        # attention to codes needs a table; without one a cache that may keep dense keys shares these
        exact = None if repeatable or dense is False else model.dtype
        served, reason = self._bind(client, model_id, table, groups, device, exact)
        if any(s.model.info.exact for s in served):
            dense = True
            log.info("kvcobrad has no active table for the model: pages hold its own keys and values (%s); a table of 3 bits per "
                     "number needs a fifth of these bytes (kvcobra.calibrate)", str(model.dtype).rpartition(".")[2])
        n_layers = len({i for group in groups for i in group.layers})
        layers: List[Any]
        if dense:
            layers = [DynamicLayer() for _ in range(n_layers)]
            self._rows: Rows = DenseRows(served, salt, table_digest, model.dtype, device, layers)
            log.info("the model attends to dense keys on %s; pages serve match() and commit()", device)
        else:
            self._rows = Rows(served, salt, repeatable, table_digest, model.dtype)
            layers = [KvCobraLayer(self._rows, i, model.config) for i in range(n_layers)]
            model.set_attn_implementation(_attention.NAME)
        if not served:
            self._rows.say("daemon", f"the cache works without kvcobra: {reason}")
        super().__init__(layers=layers)
        self._decoder = _geometry.find_decoder(model)
        watch(self._decoder)

    @classmethod
    def from_model(cls, model: Any, client: Optional[Client] = None, **options: Any) -> "KvCobraCache":
        """The cache of @model; @options as in the constructor."""
        return cls(model, client, **options)

    def _bind(self, client: Optional[Client], model_id: Optional[Digest], table: Tables,
              groups: List[_geometry.Group], device: torch.device, exact: Optional[torch.dtype]) -> Tuple[List[Served], str]:
        gpu = device if device.type == "cuda" else None
        if client is not None and (client.gpu is None) != (gpu is None):
            raise ValueError(f"the model is on {device}, and the client works {'in host memory' if gpu else 'on a GPU'}: give a "
                             f"kvcobra.Client({'gpu=model.device' if gpu else ''}), or none")
        served: List[Served] = []
        try:
            if client is None:
                client = self._own_client = Client(False if table is not None else None, gpu=gpu)
            for group in groups:
                bound = _open(client, _digest_of(model_id, group, len(groups)), _table_of(table, group, len(groups)), group, exact)
                served.append(Served(group, bound))
        except Error as e:
            for s in served:
                s.model.close()
            if e.errno not in WITHOUT:
                raise
            return [], f"layers {numbers(groups[len(served)].layers)}: {e.strerror}" if len(groups) > 1 else str(e.strerror)
        for s in served:
            _geometry.compare(s.group.geometry, s.model.geometry)
            slower = host_codec(s.model)
            if slower is not None:
                log.info("%s", slower)
        return served, ""

    @property
    def is_plain(self) -> bool:
        """True if the cache works without libkvcobra."""
        return self._rows.is_plain

    @property
    def sequences(self) -> List[Sequence]:
        """The sequences of the rows, for usage and inspection: of each row one per group of layers."""
        return [part for row in self._rows.rows for part in row.sequence.parts]

    # ---- sharing ----

    def match(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> int:
        """Starts an empty cache from published chunks of the [rows, columns] ids. Returns the number of columns that the model
        need not compute; generate() with the same input computes the rest. Other texts than these are refused afterwards."""
        if self.get_seq_length():
            raise ValueError("the cache is not empty: call reset() before match()")
        if self._rows.is_plain:
            return 0
        paddings = [0] * len(input_ids)
        if attention_mask is not None:
            paddings = self._rows.paddings([], attention_mask, input_ids.shape[1])
        self._rows.close()
        columns = self._rows.match([ids[padding:].tolist() for ids, padding in zip(input_ids, paddings)], paddings)
        self._set_columns(columns)
        return columns

    def _set_columns(self, columns: int) -> None:
        for layer in self.layers:
            if isinstance(layer, KvCobraLayer):
                layer.columns = columns

    def commit(self) -> List[int]:
        """Publishes the whole chunks of the cache. Returns the number of published tokens of each row."""
        return self._rows.commit()

    def __deepcopy__(self, memo: Any) -> "KvCobraCache":
        """A second cache with the same text, for several questions about one prefix. Packed pages are shared. It ends with the client
        of the first one."""
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(self.__dict__)
        other._rows, other._own_client = self._rows.fork(), None
        rows = other._rows
        other.layers = rows.layers if isinstance(rows, DenseRows) else [layer.fork(rows) for layer in self.layers]
        return other

    def close(self) -> None:
        """Frees the sequences. The cache is empty afterwards."""
        self.reset()
        if self._own_client is not None:
            self._own_client.close()
            self._rows.served, self._rows.is_plain, self._own_client = [], True, None

    # ---- what transformers asks a cache ----

    def crop(self, tokens_to_remove: int) -> None:
        """Removes -@tokens_to_remove columns; a positive number is the number of columns to keep."""
        columns = min(layer.get_seq_length() for layer in self.layers)
        keep = tokens_to_remove if tokens_to_remove > 0 else columns + tokens_to_remove
        keep = max(0, min(keep, columns))
        if self._rows.is_plain:
            self._rows.check_plain_crop(keep)
            if keep < columns:
                for layer in self.layers:
                    _plain(layer).crop(keep - columns)
            return
        columns = self._rows.crop(keep)
        self._set_columns(columns)
        if columns < keep:  # the start of a chunk that was packed, at most 127 columns
            with torch.no_grad():
                self._decoder(past_key_values=self, **self._rows.input(columns, keep))

    def reset(self) -> None:
        self._rows.reset()
        for layer in self.layers:
            if isinstance(layer, KvCobraLayer):
                layer.columns, layer._dynamic = 0, None
            else:
                _empty(layer)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx, "reorder_cache", beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self._rows.rows)) for _ in range(repeats)], "batch_repeat_interleave", repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        numbers = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._select(numbers, "batch_select_indices", indices)

    def _select(self, indices: Any, method: str, argument: Any) -> None:
        if not self._rows.is_plain:
            self._rows.select(indices if isinstance(indices, list) else indices.tolist())
        for layer in self.layers:
            if self._rows.is_plain or not isinstance(layer, KvCobraLayer):
                getattr(_plain(layer), method)(argument)


def _plain(layer: Any) -> Any:
    return layer.plain if isinstance(layer, KvCobraLayer) else layer


def _empty(layer: Any) -> None:
    """A DynamicLayer as it was when it was made: its own reset() keeps the memory and its length."""
    layer.__dict__.clear()
    layer.__init__()


# ---- the input of forward passes ----

WATCHED: "weakref.WeakSet[Any]" = weakref.WeakSet()
NAMES = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds")


def watch(decoder: Any) -> None:
    """Calls prepare() of a KvCobraCache before each forward pass of @decoder: a cache's update() gets no token ids and no
    padding."""
    if decoder not in WATCHED:
        decoder.register_forward_pre_hook(_before_forward, with_kwargs=True)
        decoder.register_forward_hook(_after_forward, always_call=True)
        WATCHED.add(decoder)


def _after_forward(*arguments: Any) -> None:
    _attention.begin_pass(False)


def _before_forward(decoder: Any, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> None:
    values = {**dict(zip(NAMES, arguments)), **named}
    cache = values.get("past_key_values")
    if not isinstance(cache, KvCobraCache) or cache.is_plain:
        return
    ids: Any = values.get("input_ids")
    embeddings: Any = values.get("inputs_embeds")
    shape = ids.shape if ids is not None else embeddings.shape[:2]
    _attention.begin_pass(True)
    cache._rows.prepare(cache.get_seq_length(), ids, shape, values.get("attention_mask"), values.get("position_ids"))
