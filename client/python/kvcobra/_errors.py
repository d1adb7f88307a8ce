"""The exception of this package, and its sentences for failures that have none of the library."""
from __future__ import annotations

import errno
import os


class Error(OSError):
    """A call of libkvcobra failed: errno is the positive error number, strerror the library's sentence."""

    strerror: str


def error(number: int, sentence: str) -> Error:
    """The exception for -@number of a call, with @sentence or, if that is empty, the system's text."""
    if number == errno.ECHILD:
        sentence = ("this client was created before fork(), and a child process cannot use it: create a new kvcobra.Client "
                    "in the child")
    return Error(number, sentence or os.strerror(number))
