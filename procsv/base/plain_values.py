"""Encode and decode plain values bit for bit.

Plain values are numbers, text, times, standard containers and NumPy arrays.  This module encodes
the state of callbacks and random generators.  It is pure, and never uses pickle: a restored file
may come from anywhere, so a file can only name the types in this module.

Another thread may change a container at any time, and Python refuses to iterate over a dict, set
or deque that changes.  So to check, copy or encode such a container, this module first copies it in
one step.
"""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import xxhash

TUPLE, SET, ARRAY, SCALAR, INTEGER, DICT, NAMED = 1, 2, 3, 4, 5, 6, 7  # codes of msgpack extensions
BIG_ARRAY_BYTES = 1 << 16  # `still` may share an array that is larger
VALUES_MAX = 10_000_000  # values that one value may contain
DEPTH_MAX = 32  # of nested containers

SCALARS = (type(None), bool, int, float, complex, str, bytes, datetime.date, datetime.timedelta)
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple, bytes)}
_FACTORIES |= {"": None, "deque": deque, "Counter": Counter, "OrderedDict": OrderedDict}
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS: tuple[Any, ...] = (dict, OrderedDict, Counter, defaultdict)

_LIGHT = {type(None), bool, float, complex}  # always plain, so a container with only these needs no check of each item
_PACKED = {type(None), bool, float, str, bytes}  # msgpack encodes these directly
_STILL = {*SCALARS, datetime.datetime, datetime.time}
NOTHING: Mapping[type, Callable[[Any], str]] = {}

_packer = msgspec.msgpack.Encoder()


def is_scalar(value: Any) -> bool:
    """Whether a value contains no other value and cannot be changed in place."""
    return type(value) in SCALARS or isinstance(value, np.generic) or type(value) in (datetime.datetime, datetime.time)


def find_unkept(value: Any, refuse: Mapping[type, Callable[[Any], str]] = NOTHING) -> str:
    """Returns what in `value` is not plain; "" if everything is.

    `refuse`: type of a scalar -> function that returns why to refuse the scalar, or "".
    """
    light = _LIGHT if int in refuse else _LIGHT | {int}
    waiting: list[tuple[Any, int]] = [(value, 0)]
    count = 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > VALUES_MAX:
            return f"more than {VALUES_MAX} values"
        if depth > DEPTH_MAX:
            return f"containers more than {DEPTH_MAX} deep"
        kind = type(one)
        if kind in _SEQUENCES:
            items = _items_of(one)
            if light.issuperset(map(type, items)):
                count += len(items)
            else:
                waiting += [(item, depth + 1) for item in items]
        elif kind in _MAPPINGS:
            if kind is defaultdict and one.default_factory not in _FACTORIES.values():
                return "a defaultdict whose factory is a function of the program"
            waiting += [(item, depth + 1) for pair in one.copy().items() for item in pair]
        elif why := _find_fault(one) or (refuse[kind](one) if kind in refuse else ""):
            return why
    return ""


def _find_fault(one: Any) -> str:
    kind = type(one)
    if kind is np.ndarray or isinstance(one, np.generic):
        return "" if one.dtype.kind in "biufcSUmM" else f"NumPy values of type {one.dtype}"
    if kind in (datetime.datetime, datetime.time):
        return "" if type(one.tzinfo) in (type(None), datetime.timezone) else "a time with a named zone"
    if kind is str:
        return "" if one.isascii() or one == one.encode(errors="replace").decode() else "text that is not valid Unicode"
    return "" if kind in SCALARS or kind is bytearray else f"an object of class {kind.__qualname__}"


def still(value: Any, *, shares_arrays: bool = False) -> Any:
    """Copies a plain value, so that later changes do not reach the copy.

    `shares_arrays`: do not copy big arrays, because nobody changes them in place.
    """
    kind = type(value)
    copy = partial(still, shares_arrays=shares_arrays)
    if kind is np.ndarray:
        return value if shares_arrays and value.nbytes > BIG_ARRAY_BYTES else value.copy()
    if kind in _SEQUENCES:
        items = _items_of(value)
        if _STILL.issuperset(map(type, items)):
            return value if kind in (tuple, frozenset) else value.copy()
        return deque(map(copy, items), value.maxlen) if kind is deque else kind(map(copy, items))
    if kind in _MAPPINGS:
        pairs = ((copy(key), copy(item)) for key, item in value.copy().items())
        copied = dict(pairs)
        return defaultdict(value.default_factory, copied) if kind is defaultdict else kind(copied)
    return bytearray(value) if kind is bytearray else value


def _items_of(value: Any) -> Any:
    """Returns the items of a sequence.

    The result stays iterable while another thread changes the sequence.
    """
    return value if type(value) in (list, tuple, frozenset) else list(value)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the bit: a NaN equals itself, and 1 does not equal 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    return repr(one) == repr(other) if isinstance(one, float | complex) else bool(one == other)


def digest(value: Any) -> bytes:
    """Returns a 16-byte digest of a plain value, the same in every process."""
    return xxhash.xxh3_128_digest(_packer.encode(_wrap(value, _digest_array)))


def encode(value: Any) -> bytes:
    return _packer.encode(_wrap(value, _pack_array))


def decode(data: bytes) -> Any:
    """Decodes a plain value; ValueError if `data` is not one, or is nested too deeply."""
    try:
        return _unwrap(msgspec.msgpack.decode(data, ext_hook=_read_value))
    except (RecursionError, TypeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"no plain values: {error}") from error


def _pack_array(array: Any) -> bytes:
    return bytes(np.ascontiguousarray(array).tobytes())


def _digest_array(array: Any) -> bytes:
    return xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")


def _wrap(value: Any, pack: Callable[[Any], bytes]) -> Any:
    def wrap(item: Any) -> Any:
        return _wrap(item, pack)

    def extend(code: int, items: Any) -> Any:
        return msgspec.msgpack.Ext(code, _packer.encode(items))

    def wrap_pairs(mapping: Any) -> list[Any]:
        return [[wrap(key), wrap(item)] for key, item in mapping.copy().items()]

    kind = type(value)
    if kind is np.ndarray:
        return extend(ARRAY, [value.dtype.str, list(value.shape), pack(value)])
    if isinstance(value, np.generic):
        return extend(SCALAR, [value.dtype.str, value.tobytes()])
    if kind is int and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(INTEGER, str(value).encode())
    if kind is list and _PACKED.issuperset(map(type, value)):
        return value
    if kind is list:
        return [wrap(item) for item in value]
    if kind is tuple:
        return extend(TUPLE, [wrap(item) for item in value])
    if kind is set:
        return extend(SET, _sort(wrap(item) for item in list(value)))
    if kind is dict:
        return extend(DICT, wrap_pairs(value))
    if kind is frozenset:
        return extend(NAMED, ["frozenset", _sort(wrap(item) for item in value)])
    if kind is deque:
        return extend(NAMED, ["deque", [wrap(item) for item in list(value)], value.maxlen])
    if kind is defaultdict:
        factory = next(name for name, known in _FACTORIES.items() if known is value.default_factory)
        return extend(NAMED, ["defaultdict", wrap_pairs(value), factory])
    if kind in (OrderedDict, Counter):
        return extend(NAMED, [kind.__name__, wrap_pairs(value)])
    if kind is complex:
        return extend(NAMED, ["complex", value.real, value.imag])
    if kind is bytearray:
        return extend(NAMED, ["bytearray", bytes(value)])
    if kind is datetime.timedelta:
        return extend(NAMED, ["timedelta", value.days, value.seconds, value.microseconds])
    if kind in (datetime.datetime, datetime.date, datetime.time):
        return extend(NAMED, [kind.__name__, value.isoformat(), getattr(value, "fold", 0)])
    return value


def _sort(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=_packer.encode)  # the same order in every process


def _unwrap(value: Any) -> Any:
    return [_unwrap(item) for item in value] if isinstance(value, list) else value


def _unwrap_pairs(pairs: Any) -> dict[Any, Any]:
    return {_unwrap(key): _unwrap(item) for key, item in pairs}


def _read_value(code: int, data: memoryview) -> Any:
    if code == INTEGER:
        return int(bytes(data).decode())
    items = msgspec.msgpack.decode(data, ext_hook=_read_value)
    match code:
        case 3:  # ARRAY
            return np.frombuffer(items[2], np.dtype(items[0])).reshape(items[1]).copy()
        case 4:  # SCALAR
            dtype = np.dtype(items[0])
            return np.frombuffer(items[1], dtype)[0] if dtype.itemsize else np.zeros((), dtype)[()]
        case 1:  # TUPLE
            return tuple(_unwrap(items))
        case 2:  # SET
            return set(_unwrap(items))
        case 6:  # DICT
            return _unwrap_pairs(items)
        case 7:  # NAMED
            return _read_named(*items)
        case _:
            raise ValueError(f"plain value of unknown kind {code}")


def _read_named(name: str, *parts: Any) -> Any:
    match name:
        case "frozenset":
            return frozenset(_unwrap(parts[0]))
        case "deque":
            return deque(_unwrap(parts[0]), parts[1])
        case "defaultdict":
            return defaultdict(_FACTORIES[parts[1]], _unwrap_pairs(parts[0]))
        case "OrderedDict":
            return OrderedDict(_unwrap_pairs(parts[0]))
        case "Counter":
            return Counter(_unwrap_pairs(parts[0]))
        case "complex":
            return complex(*parts)
        case "bytearray":
            return bytearray(parts[0])
        case "timedelta":
            return datetime.timedelta(*parts)
        case "datetime" | "time":
            kind = datetime.datetime if name == "datetime" else datetime.time
            return kind.fromisoformat(parts[0]).replace(fold=parts[1])
        case "date":
            return datetime.date.fromisoformat(parts[0])
        case _:
            raise ValueError(f"plain value of unknown kind {name}")
