"""Reads replies of kvcobra.proto without the protobuf runtime: what Client.models() and Client.quota_bytes need of them."""
from __future__ import annotations

import struct
from typing import Any, Dict, List, Tuple

Fields = Dict[int, List[Any]]


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the daemon's reply is not a valid message")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def varint(value: int) -> bytes:
    """The serialised @value."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def fields(data: bytes) -> Fields:
    """The values of a serialised message by field number, in their order: int, float of a double, or bytes."""
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            n = 8 if kind == 1 else 4
            if len(data) - at < n:
                raise ValueError("the daemon's reply is cut")
            value, at = struct.unpack_from("<d" if kind == 1 else "<f", data, at)[0], at + n
        elif kind == 2:
            n, at = _varint(data, at)
            if len(data) - at < n:
                raise ValueError("the daemon's reply is cut")
            value, at = data[at:at + n], at + n
        else:
            raise ValueError(f"the daemon's reply has a field of the unknown kind {kind}")
        found.setdefault(key >> 3, []).append(value)
    return found


def one(message: Fields, number: int, default: Any) -> Any:
    """The last value of field @number, as protobuf reads a field that is not repeated."""
    return message.get(number, [default])[-1]
