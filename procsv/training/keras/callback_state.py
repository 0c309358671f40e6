"""Decide what part of a callback is state.

A callback has two kinds of attributes. Configuration is what the program passes or sets: paths,
patience, sizes. It comes from today's program. State is what the callback computed. It is saved,
and restored into the callback of the next attempt.

Nothing marks an attribute as one or the other, so a `Baseline` marks all values at three moments:

    first   before the first fit that has this callback, as its constructor left it
    start   before `on_train_begin` of the current fit
    begun   after it

State is every value that at a snapshot differs from `first` or `begun`, unless it belongs to a
process: paths, pids, files, threads, functions. A number or text that only `on_train_begin` has set
(a clock, a pid, a run's name) is not state, because the next attempt's `on_train_begin` sets it,
too. A saved value carries its `first` and `start` marks. It is restored if today's `start` mark is
the same. It is also restored if only today's `first` mark is the same, and either the saved fit had
changed the value itself, or today's earlier fits have not changed it. Otherwise the program now
passes another value, and the program's value wins.

An attribute may be an object of the program's own: of a dataclass, or of a class of the program or
of the callback's package. It may also be a method of such an object. The fields of the object count
as attributes of the callback, under names like `stats.total`. Values go into the objects that
today's program made: procsv never makes an object of a class that a file names. An attribute of the
callback's class, which all callbacks of that class share, is state in the same way.

This module does not depend on Keras. callback_variables.py finds variables of TensorFlow and Keras
in the attributes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import dis
import enum
import functools
import inspect
import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from procsv.base.plain_values import digest, find_unkept, is_same, is_scalar, still
from procsv.training.keras.content_digest import is_own

ValueMark = Any  # a short scalar is its own mark; other values have a tuple of kind, length and digest
ABSENT: ValueMark = ("absent", 0, b"")
SHORT_CHARS = 256  # longer text is marked by its digest
HASHED_BYTES = 1 << 26  # a larger array counts as changed: hashing it would hold up the training
PATH_CHARS = 4096
NESTED_MAX = 4  # how deep the program's own objects are followed
LIBRARIES = {"keras", "tensorflow", "procsv"}
MADE_BY_FIT = "an object that the fit made and the constructor did not"
REFILLED = (list, set, bytearray, dict, deque, np.ndarray)  # restored in place, as the program may hold references
CONTAINERS = (list, dict, set, deque)
ITEMS_MAX = 100  # a larger container outside of a callback counts as changed only if its size changes


class SavedValue(NamedTuple):
    """One saved value of a callback."""

    first: ValueMark
    start: ValueMark
    is_of_fit: bool  # this fit has changed it; if False, an earlier fit has
    form: str  # how to restore it (`take_apart`); "same": into today's object, because the fit never replaced it
    value: Any


class Baseline:
    """The marks of one callback."""

    def __init__(self, callback: Any, ignored: frozenset[str]) -> None:
        """Mark a new callback. `ignored`: attributes that are never state."""
        self._ignored = ignored
        self.first = self.start = self._earlier = self._mark(callback)
        self._begun, self._ids = self.first, dict[str, int]()
        self.variables = dict[str, int]()  # how many each attribute held after `on_train_begin`
        self._outside: dict[str, tuple[Callable[[], Any], Any]] = {}  # see `_find_outside`: a reader, and what it read
        self.settings = self._read_settings(callback)

    def __getstate__(self) -> dict[str, Any]:
        """Return what to copy or to pickle: all but the functions that read variables outside."""
        return {**vars(self), "_outside": {}}

    def start_fit(self, callback: Any) -> None:
        """Mark the callback before `on_train_begin` of another fit."""
        self._earlier, self.start = self.start, self._mark(callback)

    def repeat_fit(self) -> None:
        """Treat this fit as the previous one, which the program calls again after an exception."""
        self.start = self._earlier

    def note_begun(self, callback: Any) -> None:
        """Mark the callback after `on_train_begin`."""
        self._begun = self._mark(callback)
        self._ids = {name: id(value) for name, (_, _, value) in find_leaves(callback)}
        self._outside = {name: (read, _outline(read())) for name, read in _find_outside(callback).items()}

    def find_changed_outside(self) -> list[str]:
        """Return the names of variables, containers and objects outside of the callback that the
        fit has changed.
        """
        return [name for name, (read, before) in self._outside.items() if _outline(read()) != before]

    def is_set_at_begin(self, name: str) -> bool:
        """Return whether `on_train_begin` has changed this attribute."""
        return not is_same(self.start.get(name, ABSENT), self._begun.get(name, ABSENT))

    def _mark(self, callback: Any) -> dict[str, ValueMark]:
        return {name: mark(value) for name, (_, _, value) in find_leaves(callback)}

    def _read_settings(self, callback: Any) -> dict[str, ValueMark]:
        """Read the marks of constructor arguments that became attributes of the same name, except
        paths.
        """
        try:
            parameters = inspect.signature(type(callback)).parameters
        except (TypeError, ValueError):  # a class without a Python signature
            return {}
        marks = {name: self.first[name] for name in parameters if name in self.first}
        return {name: one for name, one in marks.items() if not _is_opaque(one) and not names_path(one)}

    def read_state(self, callback: Any, *, shares_arrays: bool = False) -> tuple[dict[str, SavedValue], dict[str, str]]:
        """Return the state by name. For each other changed value, return why it is not kept.

        `shares_arrays`: the callback never changes an array in place.
        """
        state, unkept = dict[str, SavedValue](), dict[str, str]()
        for name, (_, _, value) in find_leaves(callback):
            if name in self._ignored:
                continue
            first, start, begun = (marks.get(name, ABSENT) for marks in (self.first, self.start, self._begun))
            is_same_object = self._ids.get(name) == id(value)
            form, plain = take_apart(value)
            if why := find_unkept(plain):
                if not is_same_object or _changes_by_itself(value) or mark(value) != begun:
                    unkept[name] = why
                continue
            is_as_begun = not is_changed(begun, value)
            if is_as_begun and not is_changed(first, value):
                continue
            if is_as_begun and not is_same(start, begun) and (is_scalar(value) or find_unkept(plain, OF_PROCESS)):
                continue  # the next attempt's on_train_begin sets it again
            copied = still(plain, shares_arrays=shares_arrays)
            if why := find_unkept(copied, refusals_of(name)):  # another thread may have changed the value itself
                unkept[name] = why
            elif form and not (type(begun) is tuple and begun[0] == mark(value)[0]):
                unkept[name] = MADE_BY_FIT
            elif (prefix := _prefix_of(name)) and not any(one.startswith(prefix) for one in self._begun):
                unkept[prefix[:-1]] = MADE_BY_FIT
            else:
                form = form or ("same" if is_same_object and isinstance(value, REFILLED) else "")
                state[name] = SavedValue(first, start, is_changed(start, value), form, copied)
        return state, unkept

    def write_state(self, callback: Any, state: dict[str, SavedValue]) -> dict[str, str]:
        """Restore a state. Return what stays as today's program has it, and why."""
        now, left = dict(find_leaves(callback)), dict[str, str]()
        holders = {_prefix_of(name): holder for name, (holder, _, _) in now.items()} | {"": callback}
        for name, saved in state.items():
            first, start = self.first.get(name, ABSENT), self.start.get(name, ABSENT)
            is_first, is_start = is_same(saved.first, first), is_same(saved.start, start)
            if not is_start and not (is_first and (saved.is_of_fit or is_same(first, start))):
                if saved.is_of_fit:
                    left[name] = describe_change(saved.first, first)
            elif (prefix := _prefix_of(name)) not in holders:
                left[name] = "the program has no such object now"
            elif not _put_value(holders[prefix], name.removeprefix(prefix), saved):
                left[name] = "the program has an object of another kind there now"
        return left


# -- marks -----------------------------------------------------------------------------------------------------
def mark(value: Any) -> ValueMark:
    """Return a value's mark, which is the same for equal values in any process."""
    form, plain = take_apart(value)
    if is_scalar(value) and not (isinstance(value, str | bytes) and len(value) > SHORT_CHARS):
        return value if not find_unkept(value) else ("opaque", _kind_of(value, form), 0)
    if find_unkept(plain):
        return ("opaque", _kind_of(value, form), _length_of(value))
    return (_kind_of(value, form), _length_of(value), _digest(plain))


def is_changed(before: ValueMark, value: Any) -> bool:
    """Return whether a plain value differs from the one that was marked `before`."""
    if type(before) is not tuple:
        return not is_same(before, value)
    form, plain = take_apart(value)
    if before[:2] != (_kind_of(value, form), _length_of(value)):
        return True
    if isinstance(value, np.ndarray) and value.nbytes > HASHED_BYTES:
        return True
    return bool(before[2] != _digest(plain))


def find_changed_settings(before: dict[str, ValueMark], now: dict[str, ValueMark]) -> dict[str, str]:
    """Return the settings that have changed, each with both values."""
    both = {name: (before[name], one) for name, one in now.items() if name in before}
    return {name: describe_change(*marks) for name, marks in both.items() if not is_same(*marks)}


def describe_change(before: ValueMark, now: ValueMark) -> str:
    texts = [one[0] if type(one) is tuple else repr(one) for one in (before, now)]
    return f"{texts[0]} then, {texts[1]} now" if texts[0] != texts[1] else "changed"


def _digest(plain: Any) -> bytes:
    return digest(list(plain) if type(plain) is deque else plain)  # its maxlen is configuration


def _is_opaque(one: ValueMark) -> bool:
    return type(one) is tuple and one[0] == "opaque"


def _kind_of(value: Any, form: str) -> str:
    return f"{form} {type(value).__qualname__}" if form else type(value).__name__


def _length_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.size)
    return len(value) if isinstance(value, str | bytes | list | tuple | set | frozenset | dict | deque) else 0


# -- attributes ------------------------------------------------------------------------------------------------
Leaf = tuple[Any, str, Any]  # the object that holds an attribute, the attribute's name, its value


def find_leaves(callback: Any) -> Iterator[tuple[str, Leaf]]:
    """Yield the attributes of a callback, and of the program's own objects in it, by name."""
    homes = {type(callback).__module__.partition(".")[0], "__main__"} - LIBRARIES
    return _walk(callback, "", homes, {id(callback)})


def _walk(holder: Any, prefix: str, homes: set[str], seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    for kind in type(holder).__mro__:
        if kind.__module__.partition(".")[0] in homes:
            for name, value in _data_of_class(kind):
                yield f"{prefix}{kind.__name__}.{name}", (kind, name, value)
    for name, value in _attributes_of(holder).items():
        target = value.__self__ if inspect.ismethod(value) else value
        if prefix.count(".") < NESTED_MAX and _is_own(target, homes):
            if id(target) not in seen:
                seen.add(id(target))
                yield from _walk(target, f"{prefix}{name}.", homes, seen)
        else:
            yield f"{prefix}{name}", (holder, name, value)


def _find_outside(callback: Any) -> dict[str, Callable[[], Any]]:
    """Find what the functions of a callback may change outside of the callback.

    Return a function for each name, which reads the present value. The names are those of
    containers and of the program's own objects that the functions use, and of globals and closure
    variables that the functions set.
    """
    holders = [callback, *filter(is_own, type(callback).__mro__)]
    functions = [
        one for holder in holders for one in vars(holder).copy().values() if inspect.isfunction(one) and is_own(one)
    ]
    found = dict[str, Callable[[], Any]]()
    for function in functions:
        with contextlib.suppress(ValueError):  # a variable without a value
            named = inspect.getclosurevars(function)
            for name, value in {**named.globals, **named.nonlocals}.items():
                if type(value) in CONTAINERS or (value is not callback and _is_own(value, set())):
                    found[name] = _reader({name: value}, name)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for step in dis.get_instructions(function):
            if step.opname == "STORE_GLOBAL":
                found[step.argval] = _reader(function.__globals__, step.argval)
            elif step.opname == "STORE_DEREF" and step.argval in cells:
                found[step.argval] = functools.partial(_content_of, cells[step.argval])
    return found


def _reader(known: Mapping[str, Any], name: str) -> Callable[[], Any]:
    return lambda: known.get(name)


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _outline(value: Any, depth: int = 3) -> Any:
    """Return a cheap description of a value, to compare with a later one.

    Numbers and texts describe themselves. A container is described by its items, and an object of
    the program's own by its attributes. Items deep inside, and other objects, are described by
    their ids, and a container of more than ITEMS_MAX items only by its size.
    """
    if is_scalar(value):
        return value
    if depth and _is_own(value, set()):
        return _outline(_attributes_of(value), depth)
    if not depth or type(value) not in (*CONTAINERS, tuple):
        return id(value)
    if len(value) > ITEMS_MAX:
        return len(value)
    items = value if isinstance(value, tuple) else value.copy()  # another thread may change it
    return [_outline(item, depth - 1) for item in (items.items() if isinstance(items, dict) else items)]


def _data_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that are plain values, neither methods nor Python's own."""
    for name, value in vars(kind).copy().items():  # another thread may change it
        is_data = is_scalar(value) or isinstance(value, (*REFILLED, tuple, frozenset, enum.Enum))
        if is_data and not (name.startswith("__") and name.endswith("__")):
            yield name, value


def _prefix_of(name: str) -> str:
    """Return the prefix of a name: `stats.` for `stats.total`."""
    return name[: name.rfind(".") + 1]


def _attributes_of(holder: Any) -> dict[str, Any]:
    fields = dataclasses.fields(holder) if dataclasses.is_dataclass(holder) else ()
    return {one.name: getattr(holder, one.name) for one in fields if hasattr(holder, one.name)} | getattr(
        holder, "__dict__", {}
    )


def _is_own(value: Any, homes: set[str]) -> bool:
    """Return whether a value is an object of the program's own, restored field by field.

    `homes`: packages whose classes count as the program's own, too.
    """
    if isinstance(value, type | enum.Enum | BaseException):
        return False
    kind: Any = type(value)
    if dataclasses.is_dataclass(value):
        return not kind.__dataclass_params__.frozen
    return hasattr(value, "__dict__") and all(
        is_own(base) or base.__module__.partition(".")[0] in homes for base in kind.__mro__[:-1]
    )


# -- values ----------------------------------------------------------------------------------------------------
def take_apart(value: Any) -> tuple[str, Any]:
    """Return a form and the plain values that restore `value` into today's object of its class.

    With the form "", the plain value is `value` itself.
    """
    if isinstance(value, enum.Enum):
        return "member", value.name
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "fields", dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "fields", _attributes_of(value)
    if type(value) is random.Random:
        return "generator", value.getstate()
    if type(value) is np.random.Generator:
        return "generator", value.bit_generator.state
    if type(value) is np.random.RandomState:
        return "generator", value.get_state()
    return "", value


def put_together(present: Any, form: str, plain: Any) -> Any:
    """Rebuild a value from its plain parts and today's object, the reverse of `take_apart`.

    Raise TypeError, ValueError or LookupError if they do not fit.
    """
    if form == "member" and isinstance(present, enum.Enum):
        return type(present)[plain]
    if form == "fields" and take_apart(present)[0] == form and take_apart(present)[1].keys() == plain.keys():
        if isinstance(present, tuple):
            return type(present)(*plain.values())
        made = copy.copy(present)
        for name, value in plain.items():
            object.__setattr__(made, name, value)
        return made
    if form == "generator" and type(present) is random.Random:
        present.setstate(plain)
    elif form == "generator" and type(present) is np.random.Generator:
        present.bit_generator.state = plain
    elif form == "generator" and type(present) is np.random.RandomState:
        present.set_state(plain)
    else:
        raise TypeError(f"{form} of another class than {type(present).__qualname__}")
    return present


def _put_value(holder: Any, name: str, saved: SavedValue) -> bool:
    present = vars(holder).get(name) if isinstance(holder, type) else _attributes_of(holder).get(name)
    value = saved.value
    if saved.form == "same" and type(present) is type(value) and _refill(present, value):
        return True
    if saved.form not in ("", "same"):
        try:
            value = put_together(present, saved.form, value)
        except (TypeError, ValueError, LookupError):
            return False
    elif type(present) is type(value) is deque:
        value = deque(value, present.maxlen)
    if isinstance(holder, type):
        type.__setattr__(holder, name, value)
    elif hasattr(holder, "__dict__"):
        vars(holder)[name] = value
    else:
        object.__setattr__(holder, name, value)
    return True


def _refill(present: Any, value: Any) -> bool:
    """Give a container the contents of another one. Return whether they fit."""
    if isinstance(present, np.ndarray):
        fits = present.flags.writeable and (present.dtype, present.shape) == (value.dtype, value.shape)
        if fits:
            present[...] = value
        return fits
    if isinstance(present, list | bytearray):
        present[:] = value
    else:
        present.clear()
        (present.extend if isinstance(present, deque) else present.update)(value)
    return True


# -- what belongs to a process ---------------------------------------------------------------------------------
def names_path(value: Any) -> bool:
    """Return whether a text is a path or a URL.

    A path exists, begins with a directory of this machine, or begins with `~/`.
    """
    if not isinstance(value, str | bytes) or not 1 < len(value) <= PATH_CHARS:
        return False
    text = os.fsdecode(value) if isinstance(value, bytes) else value
    if "\n" in text or not (os.sep in text or "." in text):
        return False
    if "://" in text or text.startswith("~/"):
        return True
    path = Path(text)
    return os.path.exists(Path(*path.parts[:2]) if path.is_absolute() else path)  # noqa: PTH110  Path's own may raise


def _refuse_path(value: Any) -> str:
    return "a path" if names_path(value) else ""


def _refuse_pid(value: int) -> str:
    return "a process id" if value == os.getpid() else ""


PATHS: dict[type, Callable[[Any], str]] = {str: _refuse_path, bytes: _refuse_path, np.str_: _refuse_path}
OF_PROCESS: dict[type, Callable[[Any], str]] = {**PATHS, int: _refuse_pid}


def refusals_of(name: str) -> Mapping[type, Callable[[Any], str]]:
    """Return functions, by type of value, that say why an attribute of this name cannot be saved.

    A number that equals the process id may do so by chance. So it counts as a process id only if
    the name contains "pid".
    """
    return OF_PROCESS if "pid" in name.lower() else PATHS


def _changes_by_itself(value: Any) -> bool:
    """Return whether an object has a state of its own, as iterators, variables and metrics do.

    Files do not count.
    """
    kind = type(value)
    return any(hasattr(kind, name) for name in ("__next__", "assign", "update_state")) and not hasattr(kind, "fileno")
