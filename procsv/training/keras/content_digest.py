"""Digest a Python value by its contents, so that two processes can compare values.

fit_identity.py uses this to decide whether a call of `fit` had already ended before a restart: it
digests the arrays, the dataset object and the functions of the fit. Plain values, containers and
arrays count by content. Functions count by code, closure, defaults and the globals that they name.
If a function names a module of the program, the attributes that it names there count, too. Classes
of the program count by their methods and attributes. Generators count by their position and
variables, and other objects by class and attributes. What a library defines counts by name.

A value that hides its content (an open file, an iterator written in C) makes the digest incomplete,
and an incomplete digest proves nothing. Names and numbers that differ from process to process, such
as addresses and the time, never count.
"""

from __future__ import annotations

import copy
import datetime
import dis
import functools
import inspect
import logging
import mmap
import random
import struct
import sys
import threading
import time
import types
from collections.abc import Iterable, Mapping, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import psutil
import xxhash

# Hashing takes 0.1 to 0.4 s for a GB of memory (measured), but reading a file takes up to 10 s. So arrays in memory
# count whole, and a larger array in a file makes the digest incomplete rather than hold up each start of a fit.
READ_BYTES_MAX = 1 << 30
CHUNK_BYTES = 1 << 24  # an array with gaps is copied in pieces of this size
VALUES_MAX = 20_000  # with more values the digest is incomplete
_LIBRARIES = ("keras.", "tensorflow.")  # their containers have attributes for bookkeeping, which differ in each process
_POINTER_BYTES = struct.calcsize("P")

_BEGAN_S = psutil.Process().create_time()

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# A value of a subclass of one of these counts by its plain value and its attributes.
_PLAIN_BASES = (int, float, complex, str, bytes, bytearray)
_NAMED = (  # values of these types count by name
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    np.ufunc,
)


@functools.cache
def is_library(module: str) -> bool:
    """Return whether a module is a library's and not the program's own."""
    top = module.partition(".")[0]
    if top == "__main__" or module.startswith("procsv.examples"):
        return False
    if top in ("keras", "tensorflow", "procsv", "") or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def is_own(value: Any) -> bool:
    """Return whether `value` is the program's own: class, function, or object of its class."""
    if isinstance(value, types.FunctionType):
        return not is_library(value.__globals__.get("__name__") or "")
    if isinstance(value, types.MethodType):
        return is_own(value.__func__) or is_own(value.__self__)
    if isinstance(value, functools.partial):
        return True
    return not is_library(getattr(value if isinstance(value, type) else type(value), "__module__", None) or "")


@functools.cache
def set_by_libraries(bases: tuple[type, ...]) -> frozenset[str]:
    """Return the attributes that the library classes among `bases` set."""
    names = set[str]()
    for base in bases:
        if not is_library(base.__module__):
            continue
        for value in vars(base).values():
            functions: tuple[Any, ...] = (value.fget, value.fset) if isinstance(value, property) else (value,)
            for one in functions:
                code = getattr(inspect.unwrap(getattr(one, "__func__", one)), "__code__", None)
                if code is not None:
                    names |= {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    return frozenset(names)


class ContentDigest:
    """Digests values in order. `is_whole` is False if some content could not be added."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        # Numbers of the walked values, by id. While an item of a set is digested, the last dictionary has the values of
        # this item alone.
        self._seen: list[dict[int, int]] = [{}]
        self._alive: list[Any] = []  # all values that were walked, so that no id is used twice
        self.is_whole = True

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add_text(self, text: str) -> None:
        self._hash.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def add_value(self, value: Any) -> None:
        if type(value) is float and is_time_of_process(value):
            self.add_text("a time")
        elif type(value) in _PLAIN:
            self.add_text(f"{type(value).__name__} {value!r}")
        elif isinstance(value, _NAMED):
            self._add_name(value)
            if isinstance(value, type) and is_own(value) and self._is_first(value):
                self._add_class(value)
        elif self._is_first(value):
            self._add_content(value)

    def _add_name(self, value: Any) -> None:
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        self.add_text(f"{getattr(value, '__module__', '')}.{name}")

    def _is_first(self, value: Any) -> bool:
        """Return whether to walk `value`.

        A repeated occurrence is added as a reference to the first. Beyond VALUES_MAX values, walk
        no more, and leave the digest incomplete.
        """
        for depth, seen in enumerate(self._seen):
            if id(value) in seen:
                self.add_text(f"again {depth} {seen[id(value)]}")
                return False
        if len(self._alive) >= VALUES_MAX:
            self.is_whole = False
            return False
        self._seen[-1][id(value)] = len(self._seen[-1])
        self._alive.append(value)
        return True

    def _add_content(self, value: Any) -> None:
        self.add_value(type(value))
        if isinstance(value, np.ndarray | np.generic) or (hasattr(type(value), "__array__") and not is_own(value)):
            self._add_array(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add_value(key)
                self.add_value(item)
            self._add_beside_items(value)
        elif isinstance(value, Set):
            self._add_unordered(value)
            self._add_beside_items(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.add_value(value.__self__)
            self.add_value(value.__func__)
        elif isinstance(value, functools._lru_cache_wrapper | staticmethod | classmethod):
            self.add_value(value.__wrapped__)
        elif isinstance(value, functools.partial):
            self.add_value((value.func, value.args, value.keywords, vars(value)))
        elif isinstance(value, property):
            self.add_value((value.fget, value.fset, value.fdel))
        elif isinstance(value, types.GeneratorType):
            self._add_generator(value)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, PurePath):
            self.add_text(str(value))
        elif isinstance(value, (*_LOCKS, logging.Logger)):
            pass  # it has no content
        elif isinstance(value, range | slice | np.dtype):
            self.add_text(repr(value))
        elif isinstance(value, datetime.datetime) and value.year > 2000 and is_time_of_process(value.timestamp()):
            self.add_text("a time")
        elif isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            self.add_text(repr(value))
        elif isinstance(value, _PLAIN_BASES):
            base: Any = next(kind for kind in _PLAIN_BASES if isinstance(value, kind))
            self.add_text(base.__repr__(value))
            self._add_beside_items(value)
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

    def _add_unordered(self, items: Iterable[Any]) -> None:
        """Add items in any order: each is digested by itself, and the digests are sorted."""
        found = list[bytes]()
        for item in items:
            one = copy.copy(self)
            one._hash, one._seen, one.is_whole = xxhash.xxh3_128(), [*self._seen, {}], True
            one.add_value(item)
            found.append(one._hash.digest())
            self.is_whole &= one.is_whole
        for digest in sorted(found):
            self._hash.update(digest)

    # -- arrays ----------------------------------------------------------------------------------------------
    def _add_array(self, value: Any) -> None:
        if _is_table(value):  # its columns may have several types
            self.add_value(value.index)
            for name, column in value.items():
                self.add_value(name)
                self.add_value(column)
            return
        array = _read_array(value)
        if array is None:
            self.is_whole = False
            return
        self.add_text(f"{array.dtype.str if array.dtype.names is None else array.dtype} {array.shape}")
        if not array.dtype.hasobject:
            self._add_bytes(array)
        elif array.size <= VALUES_MAX:
            self.add_value(array.ravel().tolist())
        else:
            self.is_whole = False
        if isinstance(value, np.ma.MaskedArray):
            self._add_bytes(np.ma.getmaskarray(value))
            self.add_value(value.fill_value)
        elif isinstance(value, np.ndarray) and is_own(value):
            self._add_beside_items(value)

    def _add_bytes(self, array: Any) -> None:
        """Add the bytes of an array in C's order, and copy at most one chunk of it at a time."""
        if not array.nbytes:
            return
        if array.flags.c_contiguous or array.nbytes <= CHUNK_BYTES:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        elif len(array) == 1:
            self._add_bytes(array[0])
        else:
            rows = max(1, CHUNK_BYTES * len(array) // array.nbytes)
            for at in range(0, len(array), rows):
                self._add_bytes(array[at : at + rows])

    # -- code ------------------------------------------------------------------------------------------------
    def _add_function(self, function: types.FunctionType) -> None:
        if is_own(function):
            self._add_code(function.__code__)
        else:
            self._add_name(function)
        self.add_value(function.__defaults__)
        self.add_value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add_value(cell.cell_contents)
            except ValueError:  # the cell is empty
                self.add_text("empty")
        if is_own(function):
            for name, item in vars(function).items():
                if not name.startswith(("_", "ag_", "autograph_")):  # TensorFlow's marks
                    self.add_text(name)
                    self.add_value(item)
            self._add_named(function.__code__, function.__globals__)

    def _add_named(self, code: types.CodeType, known: Mapping[str, Any]) -> None:
        """Add the globals that `code` names.

        If it names a module of the program, add the attributes of this module that `code` names.
        """
        names = _names_of(code)
        modules = list[types.ModuleType]()
        for name in names:
            if isinstance(known.get(name), types.ModuleType):
                modules.append(known[name])
            elif name in known:
                self.add_text(name)
                self.add_value(known[name])
        for module in modules:  # the loop appends to `modules`
            self._add_name(module)
            if is_library(module.__name__):
                continue
            for name in names:
                value = vars(module).get(name)
                if isinstance(value, types.ModuleType):
                    if value not in modules:
                        modules.append(value)
                elif name in vars(module):
                    self.add_text(name)
                    self.add_value(value)

    def _add_class(self, kind: type) -> None:
        """Add the methods and attributes of a class, and of its bases that no library defines."""
        for base in kind.__mro__[1:]:
            self.add_value(base)
        for name, value in vars(kind).items():
            is_of_python = name.startswith("__") and name.endswith("__") and not callable(value)
            if not is_of_python and name != "_abc_impl":
                self.add_text(name)
                self.add_value(value)

    def _add_generator(self, generator: types.GeneratorType[Any, Any, Any]) -> None:
        """Add a generator's position, and everything that its continuation depends on."""
        self._add_code(generator.gi_code)
        frame = generator.gi_frame
        if frame is None:  # the generator is exhausted
            return
        self.add_value(frame.f_lasti)
        self.add_value(dict(frame.f_locals))
        self.add_value(generator.gi_yieldfrom)
        self._add_named(generator.gi_code, frame.f_globals)

    def _add_code(self, code: types.CodeType) -> None:
        self._hash.update(code.co_code)
        for constant in code.co_consts:
            self.add_value(constant)
        for name in code.co_names:
            self.add_text(name)

    # -- objects ---------------------------------------------------------------------------------------------
    def _add_beside_items(self, value: Any) -> None:
        """Add the attributes that a container of one of the program's own classes may have beside
        its items.
        """
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


def _is_table(value: Any) -> bool:
    """Return whether `value` is a table like a pandas DataFrame."""
    return all(hasattr(value, name) for name in ("index", "columns", "items", "dtypes"))


def _read_array(value: Any) -> Any:
    """Return the content of an array; None if it is unreadable, or in a file and too large."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return None if array.nbytes > READ_BYTES_MAX and _is_mapped(array) else array
    if not hasattr(value, "numpy"):  # it is no tensor: it may be in a file, or be computed only when it is read
        size, count = getattr(value, "nbytes", 0), getattr(value, "size", 0)
        is_of_numpy = isinstance(getattr(value, "dtype", None), np.dtype) and not value.dtype.hasobject
        if size > READ_BYTES_MAX or not (is_of_numpy or (isinstance(count, int) and count <= VALUES_MAX)):
            return None
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None  # a tensor that holds a resource, or a symbolic one


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def is_time_of_process(value: float) -> bool:
    """Return whether a number is a time since this process or the standby it came from began."""
    return _BEGAN_S <= value <= time.time()  # noqa: TID251  no duration


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
    """Return the attributes that `__slots__` of `kind` makes.

    Python renames those that begin with `__`.
    """
    slots = kind.__dict__.get("__slots__", ())
    names = [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]
    own = f"_{kind.__name__.lstrip('_')}"
    return [own + name if name.startswith("__") and not name.endswith("__") else name for name in names]
