"""A connection to kvcobrad, or an embedded client, and what all its handles share: entering a call, errors, freeing."""
from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Tuple, Type, Union

from . import _arrays, _gpus, _messages
from ._errors import error
from ._library import ffi, free, library, new, text

Digest = Union[bytes, str]
GPU_PAGES_HOST = 1  # enum kvc_gpu_pages
DIGEST_BYTES = 32
TIMEOUT_MIN, TIMEOUT_MAX = 0.1, 3600.0  # seconds
LIST_TABLES, GET_STATUS, TABLE_ACTIVE = 20, 40, 4  # of kvcobra.proto


class Geometry(NamedTuple):
    """The shape of a model's attention, as kvc_geometry in kvcobra.h."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rot: int
    attn_scale: float
    rope_freq: Tuple[float, ...]  # [n_rot / 2] radians per position


class ActiveModel(NamedTuple):
    """A model that the daemon has an active table for."""

    model_id: bytes
    table_digest: bytes
    bpd_code: float


class ClientInfo(NamedTuple):
    """The state of the connection, as kvc_client_info in kvcobra.h."""

    connected: bool
    resumed: bool
    session: int
    n_failed: int
    retry_ms: int
    n_reconnects: int
    boot_id: bytes


class NotCopied:
    """An object that owns something of the library, which is freed once. copy.copy() is the object itself, as for a file;
    deepcopy and pickle would need a second one, and are refused unless a class defines what they mean."""

    def __copy__(self) -> "NotCopied":
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} of kvcobra cannot be copied deeply: it belongs to one connection of this process")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} of kvcobra cannot be pickled: make one in the other process")


class Call:
    """A call in progress: refuses a second thread, and frees handles that were collected meanwhile."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def __enter__(self) -> "Call":
        if not self._client._busy.acquire(blocking=False):
            raise RuntimeError("another call of this kvcobra.Client is running: a client, its models and its sequences are used "
                               "by one thread at a time; create one client per thread")
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            while self._client._garbage:
                free, handle = self._client._garbage.popleft()
                free(handle)
        finally:
            self._client._busy.release()


class Client(NotCopied):
    """A client of kvcobrad.

    socket: path of the daemon's socket, as text, bytes or os.PathLike; None: as kvc_socket_path() of libkvcobra finds it; False works
    embedded, without a daemon.
    threads: 1..256 threads for the work of long calls; None is the calling thread alone.
    gpu: a GPU, as a torch.device, its name such as "cuda:1", or a UUID as `nvidia-smi -L` prints it. Keys and values are
    encoded and decoded there: arrays of append and read lie in its memory, and calls return when their work is queued. The pages
    stay in host memory and are those of every other client. attend is not possible.
    stream: with a gpu, the stream that the work is queued on, a torch.cuda.Stream or a cudaStream_t; None is the default stream.
    ring_bytes: with a gpu, pinned host memory through which pages move; 0 is the library's default.
    timeout: seconds within which the daemon must accept the connection and answer each call; None is the library's default, 12. A call
    that is not answered in time ends the connection, which later calls make again.

    Raises kvcobra.Error if the connection fails or the GPU cannot be used. Closing the client closes its models and sequences.
    """

    def __init__(self, socket: "Union[str, bytes, os.PathLike[Any], bool, None]" = None, threads: Optional[int] = None,
                 gpu: Any = None, stream: Any = None, ring_bytes: int = 0, timeout: Optional[float] = None) -> None:
        self._busy = threading.Lock()
        self._garbage: Deque[Tuple[Callable[[Any], Any], Any]] = deque()
        self._closers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._handle: Any = None
        if socket is True:
            raise TypeError("socket is True; expected a path, None for the default path, or False for an embedded client")
        new_client = library().function("kvc_client_new")
        self._free = library().function("kvc_client_free")
        self._last_error = library().function("kvc_last_error")
        ret = ffi.new("kvc_client **")
        r = new_client(ret)
        if r < 0:
            raise error(-r, "")
        self._handle = ret[0]
        self._embedded = socket is False
        self._gpu: Optional[int] = None
        try:
            if gpu is not None:
                self._gpu = self._set_gpu(gpu, stream, ring_bytes)
            elif stream is not None or ring_bytes:
                raise TypeError("stream and ring_bytes are for a client with a gpu")
            if socket is not False:
                self._connect(socket, timeout)
            elif timeout is not None:
                raise TypeError("timeout is for a client with a daemon")
            if threads is not None:
                self.set_threads(threads)
        except BaseException:
            self.close()
            raise

    def _connect(self, socket: "Union[str, bytes, os.PathLike[Any], bool, None]", timeout: Optional[float]) -> None:
        options = new("kvc_connect_options")
        path = ffi.NULL if socket is None else c_path(socket, "socket")
        options.path = path
        if timeout is not None:
            if not TIMEOUT_MIN <= timeout <= TIMEOUT_MAX:
                raise ValueError(f"timeout is {timeout}; expected {TIMEOUT_MIN}..{TIMEOUT_MAX} seconds")
            options.timeout_ms = round(timeout * 1000)
        self.call("kvc_client_connect_with", self._handle, options)

    # ---- the GPU ----

    def _set_gpu(self, gpu: Any, stream: Any, ring_bytes: int) -> int:
        number, uuid = _gpus.find(gpu)
        name = ffi.new("char[]", uuid.encode())
        options = new("kvc_gpu_options", uuid=name, stream=_gpus.stream_address(stream), pages=GPU_PAGES_HOST,
                      ring_bytes=ring_bytes)
        self.call("kvc_client_set_gpu", self._handle, options)
        return number

    @property
    def gpu(self) -> Optional[int]:
        """The number of the client's GPU in torch; None: the client works in host memory."""
        return self._gpu

    def set_stream(self, stream: Any) -> None:
        """Waits for the work that was queued, and queues all later work on @stream."""
        self.call("kvc_client_set_stream", self.handle, _gpus.stream_address(stream))

    def synchronize(self) -> None:
        """Waits for all queued work. Raises kvcobra.Error if an input was NaN or infinite, or the GPU is lost."""
        self.call("kvc_client_synchronize", self.handle)

    def empty(self, shape: Tuple[int, ...]) -> Any:
        """A new float32 array where this client's arrays lie. For the other modules of this package."""
        if self._gpu is None:
            import numpy
            return numpy.empty(shape, numpy.float32)
        import torch
        return torch.empty(shape, dtype=torch.float32, device="cuda" if self._gpu < 0 else f"cuda:{self._gpu}")

    # ---- calls ----

    def call(self, name: str, *arguments: Any) -> int:
        """Calls the function @name of libkvcobra. Raises kvcobra.Error if it fails. For the other modules of this package."""
        function = library().function(name)
        with Call(self):
            r = function(*arguments)
            if r >= 0:
                return int(r)
            sentence = text(self._last_error(self._handle)) if self._handle else ""
        raise error(-r, sentence)

    def adopt(self, child: Any) -> None:
        """close() of this client calls child.leave() first: the client frees what belongs to it."""
        self._closers.add(child)

    def free_later(self, free: Callable[[Any], Any], handle: Any) -> None:
        """Frees @handle, at the end of the running call if there is one: a garbage collection may come during a call."""
        self._garbage.append((free, handle))
        if self._busy.acquire(blocking=False):
            Call(self).__exit__()

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def handle(self) -> Any:
        """The kvc_client. Raises ValueError if the client is closed."""
        if self._handle is None:
            raise ValueError("the client is closed")
        return self._handle

    # ---- operations ----

    def set_threads(self, threads: int) -> None:
        """Runs the work of long calls on @threads threads, the calling one included."""
        if not 1 <= threads <= 256:
            raise ValueError(f"threads is {threads}; expected 1..256")
        self.call("kvc_client_set_threads", self.handle, threads)

    @property
    def info(self) -> ClientInfo:
        info = new("kvc_client_info")
        self.call("kvc_client_get_info", self.handle, info)
        return ClientInfo(bool(info.connected), bool(info.resumed), info.session, info.n_failed, info.retry_ms,
                          info.n_reconnects, bytes(info.boot_id))

    def models(self) -> List[ActiveModel]:
        """The models that the daemon has active tables for."""
        models: List[ActiveModel] = []
        cursor = 0
        while True:
            request = b"" if cursor == 0 else b"\x08" + _messages.varint(cursor)
            reply = _messages.fields(self.request(LIST_TABLES, request)[0])
            for table in map(_messages.fields, reply.get(1, [])):
                if _messages.one(table, 3, 0) == TABLE_ACTIVE:
                    models.append(ActiveModel(_messages.one(table, 2, b""), _messages.one(table, 1, b""), _messages.one(table, 4, 0.0)))
            cursor = _messages.one(reply, 2, 0)
            if cursor == 0:
                return models

    def quota_bytes(self) -> int:
        """The most that this user's pages and arenas may take of the daemon's pool."""
        reply = _messages.fields(self.request(GET_STATUS)[0])
        return int(_messages.one(_messages.fields(_messages.one(reply, 14, b"")), 2, 0))

    def find_model(self, model_id: Optional[Digest] = None) -> bytes:
        """The digest of a model: @model_id, or the only active one that its hexadecimal digits begin; None: the only active one."""
        if self._embedded and model_id is None:
            raise TypeError("model_id is missing: only a model with a table of the caller can go without")
        if self._embedded:
            return _arrays.digest(model_id, "model_id")
        if isinstance(model_id, str) and 0 < len(model_id) < 2 * DIGEST_BYTES and not model_id.strip("0123456789abcdefABCDEF"):
            prefix = model_id.lower()
        elif model_id is not None:
            return _arrays.digest(model_id, "model_id")
        else:
            prefix = ""
        models = sorted({model.model_id.hex() for model in self.models()})
        found = [digest for digest in models if digest.startswith(prefix)]
        if len(found) == 1:
            return bytes.fromhex(found[0])
        if not models:
            raise error(errno.ENOENT, "kvcobrad has no active table: stage and activate one with 'kvcobra table'")
        names = ", ".join(digest[:12] for digest in found or models)
        if prefix:
            raise ValueError(f"model_id {model_id!r} begins no model of kvcobrad, which has {names}" if not found else
                             f"model_id {model_id!r} begins several models of kvcobrad: {names}")
        raise ValueError(f"model_id is missing, and kvcobrad has active tables of {len(models)} models: {names}")

    def geometry(self, model_id: Digest) -> Geometry:
        """The geometry of a model that the daemon has an active table for."""
        geometry, frequencies = new("kvc_geometry"), ffi.new("double[KVC_ROPE_FREQ_MAX]")
        self.call("kvc_client_get_geometry", self.handle, self.find_model(model_id), geometry, frequencies)
        return read_geometry(geometry)

    def table_geometry(self, table: bytes) -> Tuple[bytes, Geometry]:
        """The model digest and the geometry that the bytes of a table file are for."""
        geometry, frequencies = new("kvc_geometry"), ffi.new("double[KVC_ROPE_FREQ_MAX]")
        digest = ffi.new("uint8_t[KVC_DIGEST_BYTES]")
        self.call("kvc_table_geometry", self.handle, ffi.from_buffer(table), len(table), digest, geometry, frequencies)
        return bytes(digest), read_geometry(geometry)

    def request(self, kind: int, message: bytes = b"", fd: int = -1) -> Tuple[bytes, int]:
        """Sends a request of kvcobra.proto, for programs that operate a daemon: kvc_call() in kvcobra.h.

        kind: field number in message Request. message: the serialised message of that field. fd: sent with it; -1: none.
        Returns the serialised message of the reply and its descriptor, which the caller closes; -1: none.
        """
        reply = new("kvc_reply")
        self.call("kvc_call", self.handle, kind, ffi.from_buffer(message) if message else ffi.NULL, len(message), fd, reply)
        try:
            return bytes(ffi.buffer(reply.bytes, reply.n_bytes)), reply.fd
        finally:
            free(reply.bytes)

    def close(self) -> None:
        """Closes the client with its models and sequences. Further calls have no effect."""
        if self._handle is None:
            return
        children: List[Any] = list(self._closers)
        for child in children:
            child.leave()
        with Call(self):
            handle, self._handle = self._handle, None
            self._garbage.clear()  # handles that the client frees
            self._free(handle)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:  # its models and sequences keep a client alive, so that they are gone
            while self._garbage:
                free, child = self._garbage.popleft()
                free(child)
            self._free(handle)

    def __repr__(self) -> str:
        return f"<kvcobra.Client {'closed' if self.closed else 'open'}>"


def socket_path(path: "Union[str, bytes, os.PathLike[Any], None]" = None) -> str:
    """Where a client that is given @path finds kvcobrad: kvc_socket_path() of kvcobra.h."""
    found = ffi.new("char[]", os.pathconf("/", "PC_PATH_MAX"))
    r = library().function("kvc_socket_path")(0, ffi.NULL if path is None else c_path(path, "path"), found, len(found))
    if r < 0:
        raise error(-r, "")
    return os.fsdecode(ffi.string(found))


def c_path(path: Any, name: str) -> Any:
    """A path as the system reads it. @name stands for it in messages."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise TypeError(f"{name} is a {type(path).__name__}; expected a path as text, bytes or os.PathLike") from None
    if b"\0" in encoded:
        raise ValueError(f"{name} has a NUL character: {path!r}")
    return ffi.new("char[]", encoded)


def read_geometry(g: Any) -> Geometry:
    return Geometry(g.n_layers, g.n_heads, g.n_kv_heads, g.head_dim, g.n_rot, g.attn_scale,
                    tuple(g.rope_freq[i] for i in range(g.n_rot // 2)))


class Handle(NotCopied):
    """A handle of the library that belongs to a client and is freed once."""

    def __init__(self, client: Client, handle: Any, free: str) -> None:
        self._client = client
        self._handle: Any = handle
        self._free = library().function(free)
        client.adopt(self)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def handle(self) -> Any:
        """The pointer. Raises ValueError after close()."""
        if self._handle is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        self._client.handle  # raises if the client is closed
        return self._handle

    def close(self) -> None:
        """Frees the handle. Further calls have no effect."""
        if self._handle is None:
            return
        with Call(self._client):
            handle, self._handle = self._handle, None
            self._free(handle)

    def leave(self) -> None:
        """The client is being closed, and frees the handle: one message ends its session, instead of one for each handle."""
        self._handle = None

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None and not self._client.closed:  # a client frees what belongs to it
            self._client.free_later(self._free, handle)


