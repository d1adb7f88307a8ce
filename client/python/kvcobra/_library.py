"""libkvcobra.so.0, loaded when the first client is created, and its declarations.

A function that the loaded library lacks raises an exception when it is called, not when the package is imported: the
package works with older libraries as far as they go.
"""
from __future__ import annotations

import errno
import os
from typing import Any, Optional

import cffi

from ._declarations import DECLARATIONS
from ._errors import Error

SONAME = "libkvcobra.so.0"
ENVIRONMENT = "KVCOBRA_LIBRARY"

ffi: Any = cffi.FFI()  # its types come from DECLARATIONS, where mypy does not see them
ffi.cdef(DECLARATIONS)
ffi.cdef("void free(void *);")  # of the C library: some replies are malloc'ed


def text(c_string: Any) -> str:
    """A string of the library."""
    return str(ffi.string(c_string).decode(errors="replace"))


def path_of(soname: str, environment: str) -> str:
    """The library that the environment names, else the one beside this package, which a wheel has, else the loader's."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", "lib", soname)
    return os.environ.get(environment) or (beside if os.path.exists(beside) else soname)


class Library:
    """The functions of the library by their names."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._lib: Any = ffi.dlopen(path)
        except OSError as e:
            raise Error(errno.ENOENT, f"{path} could not be loaded ({e}). Install the wheel of kvcobra, which has it, or "
                        f"Debian's package libkvcobra0, or set the environment variable {ENVIRONMENT} to the path of {SONAME}") from None

    def function(self, name: str) -> Any:
        try:
            return getattr(self._lib, name)
        except AttributeError:
            version = text(self._lib.kvc_version())
            raise Error(errno.ENOSYS, f"{self.path}, version {version}, has no {name}(): install a newer libkvcobra") from None


_loaded: Optional[Library] = None


def library() -> Library:
    """The library, loaded at the first call."""
    global _loaded
    if _loaded is None:
        _loaded = Library(path_of(SONAME, ENVIRONMENT))
    return _loaded


def new(type_name: str, **members: Any) -> Any:
    """A struct with all members 0 except struct_bytes and @members. It does not keep what its pointers point to."""
    struct = ffi.new(f"{type_name} *")
    struct.struct_bytes = ffi.sizeof(type_name)
    for name, value in members.items():
        setattr(struct, name, value)
    return struct


def free(pointer: Any) -> None:
    """Frees what the library returned malloc'ed."""
    ffi.dlopen(None).free(pointer)


def version() -> str:
    """The version of the loaded libkvcobra, such as "0.1.0"."""
    return text(library().function("kvc_version")())
