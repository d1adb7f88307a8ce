"""A match that runs while the caller does other work."""
from __future__ import annotations

import asyncio
import errno
import select
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generator, Optional, Type

from . import _arrays
from ._client import Handle
from ._errors import Error
from ._library import ffi, library

if TYPE_CHECKING:
    from ._sequence import Sequence


class Fetch(Handle):
    """A running match of a sequence, made by Sequence.fetch().

    Until it is closed nothing else can be done with the sequence. It has a fileno(), so selectors and event loops can wait
    for it; `await fetch` waits in asyncio; result() waits in this thread.
    """

    def __init__(self, sequence: "Sequence", tokens: _arrays.Tokens, leave: int) -> None:
        ids, ret = _arrays.token_array(tokens), ffi.new("kvc_fetch **")
        if leave < 0:
            raise ValueError(f"leave is {leave}; expected 0 or more")
        sequence.client.call("kvc_fetch_start", sequence.handle, ids, len(ids), leave, ret)
        super().__init__(sequence.client, ret[0], "kvc_fetch_free")
        self._sequence = sequence  # stays alive as long as the match

    def fileno(self) -> int:
        """A descriptor that is readable when the match has finished. Do not read or close it."""
        return int(library().function("kvc_fetch_fd")(self.handle))

    def done(self) -> bool:
        """True if result() would not wait."""
        try:
            return self._poll() is not None
        except Error:
            return True

    def result(self, timeout: Optional[float] = None) -> int:
        """The length of the sequence after the match. Raises TimeoutError after @timeout seconds; None waits for ever."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            n = self._poll()
            if n is not None:
                return n
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "the match has not finished")
            self._wait(left)

    def _wait(self, timeout: Optional[float]) -> None:
        """Until the descriptor is readable: then the match may have finished."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout is None else timeout * 1000)

    def _poll(self) -> Optional[int]:
        """The result, None if the match has not finished."""
        ret = ffi.new("size_t *")
        try:
            self._client.call("kvc_fetch_result", self.handle, ret)
        except Error as e:
            if e.errno == errno.EINPROGRESS:
                return None
            raise
        return int(ret[0])

    def cancel(self) -> None:
        """Ends the match. The sequence keeps what it had before, if the match has not finished."""
        self.close()

    def close(self) -> None:
        super().close()
        self._sequence._fetch_ended(self)

    def leave(self) -> None:
        super().leave()
        self._sequence._fetch_ended(self)

    def __await__(self) -> Generator[Any, None, int]:
        return self._result_async().__await__()

    async def _result_async(self) -> int:
        loop, descriptor, readable = asyncio.get_running_loop(), self.fileno(), asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        try:
            while True:
                n = self._poll()
                if n is not None:
                    return n
                readable.clear()
                await readable.wait()
        finally:
            loop.remove_reader(descriptor)

    def __enter__(self) -> "Fetch":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()


