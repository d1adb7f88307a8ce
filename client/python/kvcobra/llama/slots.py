"""Slot files of llama-server, which it writes and reads in its folder --slot-save-path.

    u32 magic, u32 version, u32 n_words; i32 words: -1, 1, n_tokens, tokens, 0; then a state without its first 8 bytes

All little-endian; version 4, as of October 2026. The 8 bytes that are left out are the magic of a state and a sequence id.
"""
from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import Any, List, NamedTuple

FILE_MAGIC, FILE_VERSION = 0x67677371, 4
STATE_MAGIC = 0xaf143cd8
HEAD = struct.Struct("<3I")
CELL_BYTES = 12
LEAST_ROOM = 1 << 16  # bytes; the state of a few tokens of a small model


class FormatError(ValueError):
    """A slot file that is not of the known format."""


class Slot(NamedTuple):
    tokens: List[int]
    state: bytes


def parse(data: bytes) -> Slot:
    """The tokens of a slot file and its state, with the 8 bytes that it leaves out."""
    if len(data) < HEAD.size:
        raise FormatError(f"the slot file has {len(data)} bytes, fewer than its head")
    magic, version, n_words = HEAD.unpack_from(data)
    if (magic, version) != (FILE_MAGIC, FILE_VERSION):
        raise FormatError(f"the slot file begins with {magic:08x}, version {version}; expected {FILE_MAGIC:08x}, version {FILE_VERSION}")
    end = HEAD.size + 4 * n_words
    if n_words < 4 or end + 8 > len(data):
        raise FormatError(f"the slot file has {len(data)} bytes, too few for its {n_words} words")
    words = struct.unpack_from(f"<{n_words}i", data, HEAD.size)
    if words[0] != -1 or words[1] != 1 or words[2] != n_words - 4 or words[-1] != 0:
        raise FormatError(f"the words of the slot file are {words[:3]} ... {words[-1]}; expected -1, 1, {n_words - 4} ... 0")
    state = data[end:]
    return Slot(list(words[3:-1]), struct.pack("<Ii", STATE_MAGIC, _sequence_id(state)) + state)


def _sequence_id(state: bytes) -> int:
    """The id in the cells of the only stream that has any: the number of the slot."""
    n_streams, at = struct.unpack_from("<I", state)[0], 4
    for _ in range(n_streams):
        if at + 4 + CELL_BYTES > len(state):
            break
        n_cells = struct.unpack_from("<I", state, at)[0]
        at += 4
        if n_cells:
            return int(struct.unpack_from("<i", state, at + 8)[0])
    raise FormatError("the slot file has no tokens")


def build(tokens: List[int], state: bytes) -> bytes:
    """A slot file of @tokens with their @state."""
    words = [-1, 1, len(tokens), *tokens, 0]
    return HEAD.pack(FILE_MAGIC, FILE_VERSION, len(words)) + struct.pack(f"<{len(words)}i", *words) + state[8:]


class Folder:
    """The folder that llama-server got as --slot-save-path: one of this user's, that no other user can read, used by one proxy."""

    def __init__(self, path: Any) -> None:
        self._path = os.fsencode(path)
        self._lock = -1
        shown = self._shown = os.fsdecode(self._path)
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as e:
            raise ValueError(f"cannot open the folder of slots {shown}: {e.strerror}. Make it (mkdir -m 700), and start llama-server with "
                             f"--slot-save-path {shown}") from None
        try:
            info = os.fstat(self._fd)
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
                raise ValueError(f"the folder of slots {shown} must belong to this user and have mode 0700, since slot files hold prompts: "
                                 f"chmod 700 {shown}")
            try:
                self._lock = os.open("kvcobra-proxy.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
            except OSError as e:
                raise ValueError(f"cannot write in the folder of slots {shown}: {e.strerror}. This program and llama-server both write "
                                 "there: choose a folder with room for the states of a prompt") from None
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"another proxy uses the folder of slots {shown}: one proxy per llama-server") from None
        except BaseException:
            self.close()
            raise

    @property
    def is_full(self) -> bool:
        """Whether there is no room for the smallest state."""
        info = os.fstatvfs(self._fd)
        return info.f_bavail * info.f_frsize < LEAST_ROOM

    def write(self, name: str, data: bytes) -> None:
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
        except OSError as e:
            raise OSError(e.errno, f"cannot write {len(data)} bytes in the folder of slots {self._shown}: {e.strerror}") from None

    def read(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        with os.fdopen(fd, "rb") as file:
            return file.read()

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        for fd in (self._lock, self._fd):
            if fd >= 0:
                os.close(fd)
        self._lock = self._fd = -1


def common(a: List[int], b: List[int]) -> int:
    """The length of the common beginning."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


__all__ = ["Folder", "FormatError", "Slot", "build", "common", "parse"]
