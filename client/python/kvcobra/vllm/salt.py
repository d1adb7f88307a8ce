"""The salt of a request: a digest of everything besides its tokens that determines its keys and values.

vLLM has the same question for its own prefix cache, and answers it with the extra keys of a block's hash. They are asked for
by vLLM's own function, so that a kind of key that a later version adds is seen here: a request with an unknown kind is
neither matched nor published. An adapter counts by its content, where vLLM's cache, which lives in one process, uses name and
path. A request without extra keys has the empty salt, which requests of other engines have too.
"""
from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

DOMAIN = b"kvcobra salt of vLLM, 1"
ADAPTER_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".pth")
READ_BYTES = 1 << 20

Signature = Tuple[Tuple[str, int, int, int], ...]


def _framed(hash_: Any, part: bytes) -> None:
    """Parts carry their lengths, so that two lists of parts never give the same bytes."""
    hash_.update(len(part).to_bytes(8, "little"))
    hash_.update(part)


class Adapters:
    """Digests of adapters' files, by the path that vLLM loads them from.

    vLLM reads an adapter once. If its files have changed since the digest was taken, the adapter that the engine runs is
    either of two, and digest() returns None.
    """

    def __init__(self) -> None:
        self._known: Dict[str, Tuple[Signature, bytes]] = {}

    def digest(self, path: str, reload: bool = False) -> Optional[bytes]:
        """The digest of the files in the folder @path. None: no such folder here, or its files changed.
        @reload: vLLM reads the files again now."""
        try:
            signature = self._signature(path)
            known = self._known.get(path)
            if known is None or reload:
                known = (signature, self._content(path, signature))
                if self._signature(path) != signature:
                    return None
                self._known[path] = known
        except OSError:
            return None
        return known[1] if known[0] == signature and signature else None

    @staticmethod
    def _signature(path: str) -> Signature:
        entries = []
        with os.scandir(path) as folder:
            for entry in folder:
                status = entry.stat()
                if entry.name.endswith(ADAPTER_SUFFIXES) and stat.S_ISREG(status.st_mode):
                    entries.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
        return tuple(sorted(entries))

    @staticmethod
    def _content(path: str, signature: Signature) -> bytes:
        whole = hashlib.sha256()
        for name, *_ in signature:
            one = hashlib.sha256()
            with open(os.path.join(path, name), "rb") as file:
                while block := file.read(READ_BYTES):
                    one.update(block)
            _framed(whole, name.encode())
            _framed(whole, one.digest())
        return whole.digest()


def of_keys(keys: Optional[Iterable[Tuple[Any, ...]]], adapter: Callable[[str], Optional[bytes]]) -> Optional[bytes]:
    """The salt for the extra keys @keys of vLLM's block hashes; b"" without any. None: a key is unknown here.
    @adapter: the digest of the adapter in a folder, or None."""
    if not keys:
        return b""
    hash_ = hashlib.sha256(DOMAIN)
    for key in keys:
        parts = _parts(key, adapter)
        if parts is None:
            return None
        _framed(hash_, str(key[0]).encode())
        for part in parts:
            _framed(hash_, part)
    return hash_.digest()


def _parts(key: Any, adapter: Callable[[str], Optional[bytes]]) -> Optional[Tuple[bytes, ...]]:
    kind, *values = key if isinstance(key, tuple) and key else (None,)
    kinds = tuple(type(value) for value in values)
    if kind == "cache_salt" and kinds == (str,):
        return (values[0].encode(),)
    if kind == "mm" and kinds == (str, int):
        return values[0].encode(), str(values[1]).encode()
    if kind == "prompt_embeds" and kinds == (bytes,):
        return (values[0],)
    if kind == "lora" and kinds == (str, str):
        digest = adapter(values[1])
        return None if digest is None else (digest,)
    return None


def of_request(request: Any, adapters: Adapters) -> Optional[bytes]:
    """The salt of a vLLM request, or None: it is neither matched nor published."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    if request.resumable:  # the prompt of a session of streamed input grows
        return None
    reload = request.lora_request is not None and request.lora_request.load_inplace
    keys, _ = generate_block_hash_extra_keys(request, 0, request.num_prompt_tokens, 0)
    return of_keys(keys, lambda path: adapters.digest(path, reload))
