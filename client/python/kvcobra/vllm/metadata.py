"""What the scheduler's side of the connector sends to the workers with each step. Everything is pickled by vLLM."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Tuple

CHUNK = 64  # tokens that are published and matched together (KVC_CHUNK_TOKENS)


@dataclass(frozen=True)
class Text:
    """A text as the daemon knows it. @tables: the digests that a worker must use, by group of layers, whatever tables are active by
    then."""

    tokens: Tuple[int, ...]
    salt: bytes
    tables: Tuple[bytes, ...]


@dataclass(frozen=True)
class Load:
    """Decode positions first .. end - 1 of @text into the blocks @blocks of the request, from position 0, by vLLM's own groups of
    layers. Block 0 stands for positions that no layer of the group needs."""

    request_id: str
    text: Text
    first: int
    end: int
    blocks: Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class Start:
    """Record a prompt: @text has its whole chunks, of which the first @n_published tokens are in the pool."""

    request_id: str
    text: Text
    n_published: int


@dataclass(frozen=True)
class Rows:
    """This step computes positions first .. first + n - 1 of a recorded prompt. @blocks: as of a load."""

    request_id: str
    first: int
    n: int
    blocks: Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class Row:
    """A request of a step of an engine that attends to codes. @tokens: the request's tokens from position @at on, as far as
    they are known now. @salt: None: its text is private; else @table is the digest of its table."""

    request_id: str
    first_block: int
    at: int
    tokens: Tuple[int, ...]
    salt: Optional[bytes]
    table: Optional[bytes]


@dataclass
class Step:
    """connector.py registers this class as vLLM's KVConnectorMetadata. @idle_seconds: how long the step lasts if it has no tokens
    and no load, since requests wait for kvcobrad's answers."""

    loads: List[Load] = field(default_factory=list)
    starts: List[Start] = field(default_factory=list)
    rows: List[Rows] = field(default_factory=list)
    batch: List[Row] = field(default_factory=list)
    finished: List[str] = field(default_factory=list)
    n_tokens: int = 0
    idle_seconds: float = 0.0
