"""Windows of tokens, cut from texts and named as `kvcobra calibrate --text` does."""
from __future__ import annotations

import codecs
import hashlib
import os
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence as Items, Set, Tuple, Union

Text = Union[str, "os.PathLike[str]"]
RUN_TOKENS = 16  # natural text rarely repeats so many; text in copies repeats all of them


class Source(NamedTuple):
    """A text: its name for messages, and its tokens without those that a tokeniser adds. by_model: the model wrote it."""

    name: str
    digest: bytes
    n_bytes: int
    tokens: List[int]
    by_model: bool = False


class Window(NamedTuple):
    """name: of the source, or of the piece of it, by which statistics keep windows apart."""

    source: int
    document: int
    tokens: List[int]
    name: bytes


def read(text: Text, number: int) -> Tuple[str, bytes]:
    """Name and bytes. A str is a text; a path is a file, whose byte order mark is no part of the text."""
    if isinstance(text, str):
        return f"text {number}", text.encode()
    if not isinstance(text, os.PathLike):
        raise TypeError(f"text {number} is a {type(text).__name__}; expected a str, which is a text, or a pathlib.Path, which is "
                        "a file")
    with open(text, "rb") as file:
        data = file.read()
    return os.fspath(text), data[len(codecs.BOM_UTF8):] if data.startswith(codecs.BOM_UTF8) else data


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


def document(tokens: List[int], place: int) -> int:
    """A hash of the tokens and their place, by which merged statistics find a window that is in both."""
    data = struct.pack("<Q", place) + struct.pack(f"<{len(tokens)}I", *tokens)
    return int.from_bytes(hashlib.blake2b(data, digest_size=16).digest()[:8], "little")


def _repeats(tokens: List[int], seen: Set[Tuple[int, ...]]) -> bool:
    """Whether a window says little that earlier ones did not: fewer than a quarter of its runs are new. @seen gets its runs."""
    before, n_runs = len(seen), len(tokens) - RUN_TOKENS + 1
    seen.update(tuple(tokens[i:i + RUN_TOKENS]) for i in range(n_runs))
    return n_runs > 0 and 4 * (len(seen) - before) < n_runs


class _Reader:
    """The windows of a text: of @n_tokens to be read, as at most @pieces pieces, each a source of its own with at least two
    windows. The windows of a longer text are then taken at equal distances: a solver fits to sources that it leaves out, which one
    source does not allow."""

    def __init__(self, source: Source, n_tokens: int, pieces: int, longest: int) -> None:
        self.source, self.longest, self.n_all = source, longest, len(source.tokens) // longest
        n = min(n_tokens // longest, self.n_all)
        cut = pieces >= 2 and n >= 4
        self.n_pieces = min(n // 2, pieces) if cut else 1
        even = [-(-i * self.n_all // n) for i in range(n)] if cut else []
        self.places = iter(even + sorted(set(range(self.n_all)).difference(even)))

    def tokens(self, place: int) -> List[int]:
        return self.source.tokens[place * self.longest:(place + 1) * self.longest]

    def name(self, place: int) -> bytes:
        """Of the source: the digest of the text, whose end for a piece is how many pieces there are, and which one it is."""
        piece = place * self.n_pieces // max(1, self.n_all)
        return self.source.digest if self.n_pieces == 1 else self.source.digest[:-2] + bytes([self.n_pieces, piece + 1])


def windows(sources: Items[Source], first: List[int], n_tokens: int, window: int, repeated: Optional[Dict[int, int]] = None,
            pieces: int = 1) -> Iterator[Window]:
    """A window of each text in turn, until they have @n_tokens. Each begins with @first. What is left at the end of a text is
    too short and stays out, and so is a window that repeats earlier windows: @repeated counts those of each text. @pieces: of a
    text that is alone."""
    longest, counted = window - len(first), 0
    seen: Set[Tuple[int, ...]] = set()
    readers = [_Reader(source, n_tokens // len(sources), pieces if len(sources) == 1 else 1, longest) for source in sources]
    any_text = True
    while any_text:
        any_text = False
        for i, reader in enumerate(readers):
            if counted >= n_tokens:
                return
            for place in reader.places:
                cut = reader.tokens(place)
                if not _repeats(cut, seen):
                    break
                if repeated is not None:
                    repeated[i] = repeated.get(i, 0) + 1
            else:
                continue
            any_text = True
            counted += window
            yield Window(i, document(first + cut, place), first + cut, reader.name(place))


# ---- text of the model ----


def own_seed(cuts: Items[Window], seed: int) -> int:
    """Differs for statistics of other texts, so that both can be merged."""
    data = struct.pack("<Q", seed % 2**64) + b"".join(struct.pack("<Q", cut.document) for cut in cuts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=16).digest()[:8], "little")


def own_windows(n_tokens: int, window: int) -> Tuple[int, int]:
    """Number and size of the windows that the model writes: whole ones, or a shorter one if the share is less than one."""
    n = (n_tokens + window // 2) // window
    return (n, window) if n else (int(n_tokens >= 64), n_tokens)


def model_name(kind: str) -> bytes:
    """The name of a source that the model wrote, as `kvcobra calibrate` names it."""
    return (f"model: {kind}" if kind else "model").encode().ljust(32, b"\0")


def of_model(written: Items[List[int]], first: List[int], names: Items[str], base: int) -> Tuple[List[Source], List[Window]]:
    """Sources and windows of what the model wrote: window i is of kind i % len(names). @base: the number of the first source."""
    cuts = [Window(base + i % len(names), document(first + tokens, i), first + tokens, model_name(names[i % len(names)]))
            for i, tokens in enumerate(written)]
    sources = []
    for kind, name in enumerate(names[:len(cuts)]):
        ids = b"".join(struct.pack(f"<{len(cut.tokens)}I", *cut.tokens) for cut in cuts if cut.source == base + kind)
        sources.append(Source(name, hashlib.sha256(ids).digest(), len(ids), [], True))
    return sources, cuts
