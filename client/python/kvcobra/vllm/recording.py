"""Which rows of a step belong to which prompt, and their copies: the only work of publishing inside the forward pass.

A layer's keys and values arrive as rows of one tensor for all requests of a step, with the slot of the cache that each row
goes to. A request's rows are found by the slot of its first new token. They are copied, since the tensors belong to the
forward pass, into one buffer for all layers, which the publisher's thread encodes after the step. On a GPU the buffer lies in
its memory and nothing here waits for it: rows are found there, and whether they were is read by the publisher.

Positions decide what is kept. A prompt is recorded in order: rows of positions that it has are skipped, as after a preemption,
and rows beyond the next position are ignored, as after a prefix that was computed elsewhere. So whatever vLLM computes twice,
a text is published once and has no gap.
"""
from __future__ import annotations

import math
from collections import deque
from typing import AbstractSet, Any, Deque, Dict, FrozenSet, List, Optional, Sequence as Items, Set, Tuple

import torch

from .._groups import HEADS, vectors
from .geometry import Blocks
from .metadata import Rows, Text

# Steps that vLLM may have scheduled before it sees a failure: one with asynchronous scheduling. The others are a margin.
FAILED_STEPS = 4


class Recording:
    """A prompt, of one group of layers. @next: the position that is recorded next; the whole chunks end at len(text.tokens)."""

    def __init__(self, text: Text, n_published: int, group: int = 0) -> None:
        self.text = text
        self.group = group
        self.n_published = n_published
        self.next = n_published
        self.dropped = False

    @property
    def complete(self) -> bool:
        return self.next == len(self.text.tokens)


class Copy:
    """Rows of one step: @n positions from @first, to be taken from row @row on. @memory: numbers for @vectors, which are
    [layers, 2, n, heads, d]. On a GPU @row is a tensor, and @found is a tensor that is false if there are no such rows."""

    def __init__(self, recording: Recording, first: int, n: int, row: Any, memory: torch.Tensor, shape: Tuple[int, ...],
                 found: Optional[torch.Tensor] = None) -> None:
        self.recording = recording
        self.first = first
        self.n = n
        self.row = row
        self.found = found
        self.memory = memory
        self.vectors = memory[:math.prod(shape)].view(shape)
        self.n_layers = 0
        self.ready: Any = None  # an event of the GPU: every layer was taken

    @property
    def whole(self) -> bool:
        """Every layer was taken."""
        return self.n_layers == self.vectors.shape[0]

    def take(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        for side, x in enumerate((key, value)):
            if self.found is None:
                self.vectors[layer, side].copy_(x[self.row:self.row + self.n])
            else:
                torch.index_select(x, 0, self.row, out=self.vectors[layer, side])
        self.n_layers += 1


def slots(blocks: Any, block_tokens: int, first: int, n: int) -> torch.Tensor:
    """The slots of positions first .. first + n - 1 of a request with the blocks @blocks."""
    positions = torch.arange(first, first + n)
    return torch.tensor(blocks, dtype=torch.int64)[positions // block_tokens] * block_tokens + positions % block_tokens


def find_row(slot_mapping: torch.Tensor, wanted: torch.Tensor) -> Optional[int]:
    """The row from which on @slot_mapping has the slots @wanted, or None."""
    found = (slot_mapping == wanted[0]).nonzero()
    if found.numel() != 1:
        return None
    row = int(found[0, 0])
    return row if torch.equal(slot_mapping[row:row + wanted.numel()], wanted) else None


def find_device_rows(slot_mapping: torch.Tensor, wanted: torch.Tensor, skipped: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The same on a GPU, without waiting for it: the rows of the slots @wanted without the first @skipped, and whether
    @slot_mapping has all of them."""
    slots_there = wanted.pin_memory().to(slot_mapping.device, non_blocking=True)
    rows = (slot_mapping == slots_there[0]).int().argmax() + torch.arange(wanted.numel(), device=slot_mapping.device)
    rows = rows.clamp(max=slot_mapping.numel() - 1)
    return rows[skipped:], (slot_mapping[rows] == slots_there).all()


class Recorder:
    """The prompts that a worker records of the layers of one @group. @layers: their numbers in the model. @reserve(n_numbers, like):
    memory for numbers as in @like, or None. @part: what of the layers' cache the group has."""

    def __init__(self, blocks: Blocks, group: int, layers: Items[int], reserve: Any, counters: Any, part: str = HEADS) -> None:
        self._part = part
        self._blocks = blocks
        self._group = group
        self._layers = tuple(layers)
        self._reserve = reserve
        self._counters = counters
        self._recordings: Dict[str, Recording] = {}
        self._rows: List[Rows] = []
        self._copies: Optional[List[Copy]] = None
        self._failed: Deque[FrozenSet[int]] = deque(maxlen=FAILED_STEPS)

    def start(self, request_id: str, text: Text, n_published: int) -> None:
        self._recordings[request_id] = Recording(text, n_published, self._group)

    def finish(self, request_id: str) -> Optional[Recording]:
        """The request has ended. Returns its recording if it is not complete."""
        return self._recordings.pop(request_id, None)

    def stop(self) -> List[Recording]:
        """No prompt is recorded on. Returns the recordings that are not complete."""
        stopped, self._recordings = list(self._recordings.values()), {}
        for recording in stopped:
            recording.dropped = True
        return stopped

    def expect(self, rows: List[Rows]) -> None:
        """The rows of the next step."""
        self._rows = [r for r in rows if r.request_id in self._recordings]
        self._copies = None
        self._failed.append(frozenset())
        for failed in self._failed:
            self._drop(failed)

    def fail(self, blocks: Set[int]) -> None:
        """The blocks @blocks do not have their keys and values in this step. Prompts that use them are computed from wrong
        ones, until vLLM has seen the failure and computes them again: they are not published."""
        self._failed[-1] |= blocks
        self._drop(blocks)

    def _drop(self, failed: AbstractSet[int]) -> None:
        for rows in self._rows:
            if any(not failed.isdisjoint(blocks) for blocks in rows.blocks):
                self._recordings[rows.request_id].dropped = True
        self._rows = [r for r in self._rows if not self._recordings[r.request_id].dropped]

    @property
    def active(self) -> bool:
        return bool(self._rows)

    def take(self, layer: int, first: torch.Tensor, second: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """@layer: its place in the group. @first, @second: what its cache gets, [rows, heads, numbers]."""
        key, value = vectors(self._part, first, second)
        if value is None:
            value = key.new_zeros(()).expand_as(key)
        if self._copies is None:
            self._copies = self._begin(self._blocks.of_layer[self._layers[layer]], key, slot_mapping)
        for copy in self._copies:
            copy.take(layer, key, value)

    def _begin(self, of_vllm: int, key: torch.Tensor, slot_mapping: torch.Tensor) -> List[Copy]:
        """@slot_mapping: of vLLM's group @of_vllm. The rows of a request are the same ones in every layer."""
        copies = []
        on_gpu = slot_mapping.device.type == "cuda"
        for rows in self._rows:
            recording = self._recordings[rows.request_id]
            end = min(rows.first + rows.n, len(recording.text.tokens))
            if recording.dropped or not rows.first <= recording.next < end:
                continue
            wanted, skipped = slots(rows.blocks[of_vllm], self._blocks.tokens[of_vllm], rows.first, end - rows.first), recording.next - rows.first
            row: Any = None
            found: Optional[torch.Tensor] = None
            if on_gpu:
                row, found = find_device_rows(slot_mapping, wanted, skipped)
            else:
                first_row = find_row(slot_mapping, wanted)
                row = None if first_row is None else first_row + skipped
            if row is None:
                recording.dropped = True
                continue
            n = end - recording.next
            shape = (len(self._layers), 2, n, *key.shape[1:])
            memory = self._reserve(math.prod(shape), key)
            if memory is None:
                recording.dropped = True
                self._counters.add("prompts_queue_full")
                continue
            copies.append(Copy(recording, recording.next, n, row, memory, shape, found))
        return copies

    def end(self) -> List[Copy]:
        """The step is over. Returns its copies; those of a step that did not run every layer have none."""
        copies, self._copies, self._rows = self._copies or [], None, []
        for copy in copies:
            if copy.whole:
                copy.recording.next = copy.first + copy.n
            else:
                copy.recording.dropped = True
        for request_id in [i for i, r in self._recordings.items() if r.complete]:
            del self._recordings[request_id]
        return copies
