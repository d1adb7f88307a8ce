"""Text that a transformers model writes for its own calibration: short documents of several kinds, as `kvcobra calibrate` has
them written (tools/calibrate/corpus_model.c says why they are short, and begun with given words)."""
from __future__ import annotations

import functools
import random
from typing import Any, Callable, List, Sequence as Items

import torch

from .._openings import OPENINGS

PIECE_TOKENS = 256  # most tokens of a sequence
AT_ONCE = 32  # sequences in lock step
DOCUMENT_LEAST, DOCUMENT_MORE = 96, 288  # tokens of a document: at least, and at most as many more
TEMPERATURES = (0.7, 0.85, 1.0, 1.0)


class _Piece:
    """A sequence that is being written."""

    def __init__(self, seed: int, number: int, kind: int, begins: bool) -> None:
        self.random = random.Random(f"{seed} {number}")
        self.kind, self.left, self.temperature = kind, 0, 1.0
        self.forced: List[int] = []
        self.tokens: List[int] = []
        self._begins = begins

    def begin(self, tokenizer: Any) -> None:
        """Begins a document."""
        text = self.random.choice(OPENINGS[self.kind][1])
        if self.tokens or not self._begins:
            text = "\n\n" + text
        self.forced = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        self.temperature = self.random.choice(TEMPERATURES)
        self.left = DOCUMENT_LEAST + self.random.randrange(DOCUMENT_MORE)


def write_windows(model: Any, tokenizer: Any, first: List[int], n_windows: int, window: int, seed: int,
                  progress: Callable[[int], None]) -> List[List[int]]:
    """@n_windows of @window tokens without @first, which begins every sequence; window i is of kind i % len(OPENINGS).

    @progress: gets the number of tokens so far. Raises ValueError if @model cannot write.
    """
    if model.get_output_embeddings() is None:
        raise ValueError("the model has no head that predicts tokens, so it cannot write text: give texts and own_share=0")
    length = -(-window // -(-window // PIECE_TOKENS))
    n_pieces = -(-window // length)
    pieces = [_Piece(seed, i, i // n_pieces % len(OPENINGS), i % n_pieces == 0) for i in range(n_windows * n_pieces)]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for i in range(0, len(pieces), AT_ONCE):
                _write(model, tokenizer, first, pieces[i:i + AT_ONCE], length, functools.partial(_add, progress, i * length))
    finally:
        model.train(training)
    texts = [[token for piece in pieces[i:i + n_pieces] for token in piece.tokens] for i in range(0, len(pieces), n_pieces)]
    return [text[:window] for text in texts]


def _add(progress: Callable[[int], None], before: int, n: int) -> None:
    progress(before + n)


def _write(model: Any, tokenizer: Any, first: List[int], pieces: Items[_Piece], length: int,
           progress: Callable[[int], None]) -> None:
    """Writes @pieces in lock step."""
    special = sorted({int(i) for i in getattr(tokenizer, "all_special_ids", None) or []})
    cache: Any = None
    logits: Any = None
    if first:
        logits, cache = _run(model, [first] * len(pieces), cache)
    for n in range(length):
        newest = []
        for i, piece in enumerate(pieces):
            if piece.left == 0:
                piece.begin(tokenizer)
            piece.left -= 1
            newest.append(piece.forced.pop(0) if piece.forced else _draw(logits, i, piece, special))
            piece.tokens.append(newest[-1])
        if n + 1 < length:
            logits, cache = _run(model, [[token] for token in newest], cache)
        progress(len(pieces) * (n + 1))


def _run(model: Any, tokens: List[List[int]], cache: Any) -> Any:
    out = model(input_ids=torch.tensor(tokens), past_key_values=cache, use_cache=True)
    return out.logits[:, -1].float(), out.past_key_values


def _draw(logits: Any, i: int, piece: _Piece, special: List[int]) -> int:
    """A token of the model's distribution at the document's temperature; none that begins or ends a text."""
    if logits is None:
        raise ValueError("the tokeniser has no tokens for text to begin with, so the model cannot write: give own_share=0")
    row = logits[i].clone()
    row[[token for token in special if token < len(row)]] = float("-inf")
    shares = (row / piece.temperature).softmax(-1).double().cumsum(-1)
    at = int(torch.searchsorted(shares, torch.tensor(piece.random.random() * float(shares[-1]), dtype=torch.float64)))
    return min(at, len(row) - 1)
