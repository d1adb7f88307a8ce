"""Windows of tokens, cut from texts and named as `kvcobra calibrate --text` does."""
from __future__ import annotations

import hashlib
import os
import struct
from typing import Any, Iterator, List, NamedTuple, Sequence as Items, Tuple, Union

Text = Union[str, "os.PathLike[str]"]


class Source(NamedTuple):
    """A text: its name for messages, and its tokens without those that a tokeniser adds."""

    name: str
    digest: bytes
    n_bytes: int
    tokens: List[int]


class Window(NamedTuple):
    source: int
    document: int
    tokens: List[int]


def read(text: Text, number: int) -> Tuple[str, bytes]:
    """Name and bytes. A str is a text; a path is a file."""
    if isinstance(text, str):
        return f"text {number}", text.encode()
    if not isinstance(text, os.PathLike):
        raise TypeError(f"text {number} is a {type(text).__name__}; expected a str, which is a text, or a pathlib.Path, which is "
                        "a file")
    with open(text, "rb") as file:
        return os.fspath(text), file.read()


def tokenise(text: Text, number: int, tokenizer: Any) -> Source:
    name, data = read(text, number)
    try:
        string = data.decode()
    except UnicodeDecodeError as e:
        raise ValueError(f"{name} is not UTF-8 text: byte 0x{data[e.start]:02x} at offset {e.start}") from None
    return Source(name, hashlib.sha256(data).digest(), len(data),
                  tokenizer(string, add_special_tokens=False, verbose=False)["input_ids"])


def bos(tokenizer: Any) -> List[int]:
    """What the tokeniser puts before a text: nothing, or the begin of sequence."""
    ids = list(tokenizer("", add_special_tokens=True)["input_ids"])
    return ids[:1] if ids and ids[0] == getattr(tokenizer, "bos_token_id", None) else []


def _document(tokens: List[int], place: int) -> int:
    """A hash of the tokens and their place, by which merged statistics find a window that is in both."""
    data = struct.pack("<Q", place) + struct.pack(f"<{len(tokens)}I", *tokens)
    return int.from_bytes(hashlib.blake2b(data, digest_size=16).digest()[:8], "little")


def windows(sources: Items[Source], first: List[int], n_tokens: int, window: int) -> Iterator[Window]:
    """A window of each text in turn, until they have @n_tokens. Each begins with @first. What is left at the end of a text is
    too short and stays out."""
    longest, counted, place = window - len(first), 0, 0
    while True:
        any_text = False
        for i, source in enumerate(sources):
            if counted >= n_tokens:
                return
            cut = source.tokens[place * longest:(place + 1) * longest]
            if len(cut) < longest:
                continue
            any_text = True
            counted += window
            yield Window(i, _document(first + cut, place), first + cut)
        if not any_text:
            return
        place += 1
