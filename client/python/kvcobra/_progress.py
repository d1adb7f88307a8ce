"""A progress line on standard error, if the work takes more than two seconds. Without a terminal, as in a log: a line every ten."""
from __future__ import annotations

import sys
import time
from typing import Any

SILENT_S = 2.0
STEP_S = 0.2
LOG_STEP_S = 10.0


class Progress:
    """A context manager: the line is erased at the end. total: in @unit."""

    def __init__(self, what: str, unit: str, total: int, wanted: bool = True) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._visible = wanted and sys.stderr is not None
        self._terminal = self._visible and sys.stderr.isatty()
        self._step = STEP_S if self._terminal else LOG_STEP_S
        self._begun = time.monotonic()
        self._last = self._begun + SILENT_S - self._step
        self._width = 0

    def update(self, done: int) -> None:
        now = time.monotonic()
        if not self._visible or now < self._last + self._step:
            return
        self._last = now
        line = self.line(done, now - self._begun)
        if not self._terminal:
            print(line, file=sys.stderr, flush=True)
            return
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def line(self, done: int, seconds: float) -> str:
        """The text of the line after @seconds."""
        text = f"{self._what}  {100 * done / self._total:.0f} %"
        if done == 0:
            return text
        left = seconds * (self._total - done) / done
        return f"{text}  {done / seconds:.0f} {self._unit}/s  {int(left) // 60}:{int(left) % 60:02d} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
