"""Digest a Python value by its contents, so that two processes can compare values.

fit_identity.py uses this to decide whether a call of `fit` had already ended before a restart: it
digests the arrays, the
dataset object and the functions of the fit. Plain values, containers and arrays count by content.
Functions count by code, closure, defaults and the globals that they name. Generators count by their
position and variables, and other objects by class and attributes.

A value that hides its content (an open file, an iterator written in C) makes the digest incomplete,
and an incomplete digest proves nothing. Names and numbers that differ from process to process, such
as addresses, never count.
"""

from __future__ import annotations

import functools
import random
import struct
import threading
import types
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import xxhash

ARRAY_BYTES_MAX = 256 << 20  # of a larger array, evenly spaced rows count
ROWS_SAMPLED = 4096
_LIBRARIES = ("keras.", "tensorflow.")  # their containers have attributes for bookkeeping, which differ in each process
_POINTER_BYTES = struct.calcsize("P")
VALUES_MAX = 20_000  # with more values the digest is incomplete

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_NAMED = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    np.ufunc,
)


class ContentDigest:
    """Digests values one by one. `is_whole` is False if some content could not be added."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps the values alive, so that no id is used twice
        self.is_whole = True

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add_text(self, text: str) -> None:
        self._hash.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def add_value(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.add_text(f"{type(value).__name__} {value!r}")
        elif isinstance(value, _NAMED):
            self.add_text(
                f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
            )
        elif self._is_first(value):
            self._add_content(value)

    def _is_first(self, value: Any) -> bool:
        """Return whether to walk `value`. A repeated occurrence is added as a reference to the first."""
        before = self._seen.get(id(value))
        if before is not None:
            self.add_text(f"again {before}")
            return False
        if len(self._seen) >= VALUES_MAX:
            self.is_whole = False
            return False
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return True

    def _add_content(self, value: Any) -> None:
        self.add_text(f"{type(value).__module__}.{type(value).__qualname__}")
        if isinstance(value, np.ndarray | np.generic) or hasattr(type(value), "__array__"):
            self._add_array(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add_value(key)
                self.add_value(item)
            self._add_beside_items(value)
        elif isinstance(value, Set):
            for text in sorted(map(repr, value)):
                self.add_text(text)
            self._add_beside_items(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.add_value(value.__self__)
            self.add_value(value.__func__)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add_value(value.__wrapped__)
        elif isinstance(value, functools.partial):
            self.add_value((value.func, value.args, value.keywords))
        elif isinstance(value, types.GeneratorType):
            self._add_generator(value)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, PurePath):
            self.add_text(str(value))
        elif isinstance(value, _LOCKS):
            pass  # a lock has no content
        elif isinstance(value, range | slice):
            self.add_text(repr(value))
        elif isinstance(value, random.Random):
            self.add_value(value.getstate())
        elif isinstance(value, np.random.RandomState):
            self.add_value(value.get_state())
        elif isinstance(value, np.random.Generator):
            self.add_value(value.bit_generator.state)
        elif isinstance(value, list | tuple) or type(value).__name__ == "deque":
            for item in value:
                self.add_value(item)
            self._add_beside_items(value)
        else:
            self._add_object(value)

    def _add_array(self, value: Any) -> None:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            # The value is a tensor that holds a resource, or a symbolic one.
            self.is_whole = False
            return
        self.add_text(f"{array.dtype.str} {array.shape}")
        if array.dtype.hasobject:
            if array.size > VALUES_MAX:
                self.is_whole = False
                return
            self.add_value(array.ravel().tolist())
            return
        if array.nbytes > ARRAY_BYTES_MAX and array.ndim:
            rows = np.unique(np.linspace(0, len(array) - 1, ROWS_SAMPLED).astype(np.int64))
            array = array[rows]
        if array.nbytes:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_code(function.__code__)
        self.add_value(function.__defaults__)
        self.add_value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add_value(cell.cell_contents)
            except ValueError:  # the cell is empty
                self.add_text("empty")
        self._add_named(function.__code__, function.__globals__)

    def _add_named(self, code: types.CodeType, known: dict[str, Any]) -> None:
        for name in _names_of(code):
            if name in known:
                self.add_text(name)
                self.add_value(known[name])

    def _add_generator(self, generator: types.GeneratorType[Any, Any, Any]) -> None:
        """Add a generator's position, and everything that its continuation depends on."""
        self._add_code(generator.gi_code)
        frame = generator.gi_frame
        if frame is None:  # the generator is exhausted
            return
        self.add_value(frame.f_lasti)
        self.add_value(dict(frame.f_locals))
        self._add_named(generator.gi_code, frame.f_globals)

    def _add_code(self, code: types.CodeType) -> None:
        self._hash.update(code.co_code)
        for constant in code.co_consts:
            self.add_value(constant)
        for name in code.co_names:
            self.add_text(name)

    def _add_beside_items(self, value: Any) -> None:
        """Add the attributes that a container of one of the program's own classes may have beside its items."""
        if not type(value).__module__.startswith(_LIBRARIES):
            for name, item in getattr(value, "__dict__", {}).items():
                self.add_text(name)
                self.add_value(item)

    def _add_object(self, value: Any) -> None:
        slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
        state = getattr(value, "__dict__", None)
        if _hides_content(type(value), len(slots)) or (state is None and not slots):
            self.is_whole = False
            return
        for name, item in (state or {}).items():
            self.add_text(name)
            self.add_value(item)
        for name in slots:
            if hasattr(value, name):
                self.add_text(name)
                self.add_value(getattr(value, name))


def _names_of(code: types.CodeType) -> list[str]:
    """Return the names that a function, and the functions defined in it, take from globals."""
    inner = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names_of(constant)
    ]
    return [*dict.fromkeys([*code.co_names, *inner])]


def _hides_content(kind: type, slots: int) -> bool:
    """Return whether instances hold more than their attributes, as the instances of C classes do.

    From Python 3.12 on, type flags no longer show this: file classes, for example, are created like
    classes written in Python.
    """
    attributes = slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__itemsize__ != 0 or kind.__basicsize__ > object.__basicsize__ + attributes * _POINTER_BYTES


def _slots_of(kind: type) -> list[str]:
    """Return the attributes that `__slots__` of `kind` makes; Python renames those that begin with `__`."""
    slots = kind.__dict__.get("__slots__", ())
    names = [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]
    own = f"_{kind.__name__.lstrip('_')}"
    return [own + name if name.startswith("__") and not name.endswith("__") else name for name in names]
