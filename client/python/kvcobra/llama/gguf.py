"""The first words of a GGUF file: its architecture. The command kvcobra reads the rest."""
from __future__ import annotations

import struct
from typing import Any, BinaryIO

MAGIC, KEY = b"GGUF", b"general.architecture"
STRING, ARRAY = 8, 9
BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of number types
TEXT_MAX = 1 << 16
PAIRS_MAX = 1 << 16


def architecture(path: Any) -> str:
    """general.architecture of the file @path. Raises ValueError if it is no GGUF file or does not say."""
    with open(path, "rb") as file:
        if file.read(4) != MAGIC:
            raise ValueError(f"{path} is no GGUF file")
        version, _, n_pairs = struct.unpack("<IQQ", _take(file, 20, path))
        if version not in (2, 3) or n_pairs > PAIRS_MAX:
            raise ValueError(f"{path} is a GGUF file of version {version} with {n_pairs} values; expected version 2 or 3")
        for _ in range(n_pairs):
            key = _text(file, path)
            kind = struct.unpack("<I", _take(file, 4, path))[0]
            if key == KEY and kind == STRING:
                return _text(file, path).decode("utf-8", "replace")
            _skip(file, kind, path)
    raise ValueError(f"{path} does not say its architecture (general.architecture)")


def _take(file: BinaryIO, n: int, path: Any) -> bytes:
    data = file.read(n)
    if len(data) != n:
        raise ValueError(f"{path} ends within its head")
    return data


def _text(file: BinaryIO, path: Any) -> bytes:
    n = struct.unpack("<Q", _take(file, 8, path))[0]
    if n > TEXT_MAX:
        raise ValueError(f"{path} has a text of {n} bytes in its head")
    return _take(file, n, path)


def _skip(file: BinaryIO, kind: int, path: Any) -> None:
    if kind == STRING:
        _text(file, path)
    elif kind == ARRAY:
        of, n = struct.unpack("<IQ", _take(file, 12, path))
        if of == ARRAY or n > 1 << 24:
            raise ValueError(f"{path} has an array of {n} values of type {of} in its head")
        if of == STRING:
            for _ in range(n):
                _text(file, path)
        else:
            file.seek(n * _size(of, path), 1)
    else:
        file.seek(_size(kind, path), 1)


def _size(kind: int, path: Any) -> int:
    if kind not in BYTES:
        raise ValueError(f"{path} has a value of unknown type {kind} in its head")
    return BYTES[kind]
