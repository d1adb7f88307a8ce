"""Fields of a configuration that name attention and that no code of the model reads: what they change is not known."""
from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator, List, Set

# fields of a configuration that change attention
WORDS = ("attention", "attn", "rope", "rotary", "window", "cap", "scale", "scaling", "alibi")


class Fields:
    """Names of the fields of a configuration that were read."""

    def __init__(self) -> None:
        self.read: Set[str] = set()

    @contextlib.contextmanager
    def watching(self, config: Any) -> Iterator[None]:
        """Inside, what is read of @config is noted."""
        kind, read = type(config), self.read

        class Watched(kind):  # type: ignore[valid-type,misc]
            def __getattribute__(self, name: str) -> Any:
                read.add(name)
                return super().__getattribute__(name)

        config.__class__ = Watched
        try:
            yield
        finally:
            config.__class__ = kind


def _declared(config: Any) -> Set[str]:
    """The fields that the class of @config knows, which its own code may have turned into others."""
    names = {name for kind in type(config).__mro__ for name in getattr(kind, "__annotations__", {})}
    if dataclasses.is_dataclass(config):
        names |= {f.name for f in dataclasses.fields(config)}
    # transformers turns the first three into rope_parameters; the last is a list of names for its own checks
    return names | {"rope_scaling", "rope_theta", "partial_rotary_factor", "ignore_keys_at_rope_validation"} | set(getattr(config, "attribute_map", ()))


def unread(config: Any, read: Set[str]) -> List[str]:
    """Fields of @config that name attention, and that neither its class nor the model has read."""
    known = read | _declared(config) | set(vars(type(config)))
    return sorted(name for name, value in vars(config).items()
                  if not name.startswith("_") and name not in known and value not in (None, False, 0, "", [], {})
                  and any(word in name.lower().split("_") for word in WORDS))
