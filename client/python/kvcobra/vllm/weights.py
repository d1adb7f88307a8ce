"""Whether the weights of this process are still those that pages are named by.

A user may replace them through methods of vLLM's worker, by collective_rpc or a trainer, and vLLM tells its connectors only if it resets its
caches too. So these methods are wrapped. Once one was called, nothing that this process computes is published, and no page is loaded,
until the engine is started again. A connector that is made later begins with the weights of its own start.
"""
from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Iterable, List, Optional, Tuple

# apply_model() runs a function of the user on the model, which may do anything
METHODS = ("reload_weights", "start_weight_update", "update_weights", "apply_model", "discard")
MARK = "_kvcobra_watched"


class Watch:
    """The calls of this process that may have changed weights. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0
        self._last = ""

    def note(self, method: str) -> None:
        with self._lock:
            self._n += 1
            self._last = method

    def since_now(self) -> Callable[[], Optional[str]]:
        """A function: the name of the method that was called last, after this call; None: none was."""
        before = self._n

        def changed_by() -> Optional[str]:
            return self._last if self._n != before else None

        return changed_by

    def wrap(self, classes: Iterable[type]) -> None:
        """Wraps the methods that @classes define themselves. Any number of times."""
        for cls in classes:
            for name in METHODS:
                method = vars(cls).get(name)
                if callable(method) and not hasattr(method, MARK):
                    setattr(cls, name, self._watched(name, method))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(*arguments: Any, **options: Any) -> Any:
            self.note(name)  # before: another thread may be publishing
            return method(*arguments, **options)

        setattr(watched, MARK, True)
        return watched


def classes_of(base: type) -> Tuple[type, ...]:
    """@base and all classes that are derived from it."""
    found: List[type] = [base]
    for cls in found:  # grows
        below: List[type] = type.__subclasses__(cls)
        found += [derived for derived in below if derived not in found]
    return tuple(found)


WATCH = Watch()
