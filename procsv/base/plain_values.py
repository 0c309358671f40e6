"""Plain values as bytes: numbers, text, containers and NumPy arrays, each back as what it was, to the bit.  Pure.

For the state of callbacks and of random generators.  Never pickle: what is restored may come from anywhere.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

TUPLE, SET, ARRAY, SCALAR, INTEGER, DICT = 1, 2, 3, 4, 5, 6  # codes of msgpack's extensions
BIG_ARRAY_BYTES = 1 << 16  # above it an array is not copied at once; it must not be changed in place meanwhile

_packer = msgspec.msgpack.Encoder()


def is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return type(value) in (type(None), bool, int, float, str, bytes)
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufcSU"
    if type(value) in (list, tuple, set, frozenset):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return False


def still(value: Any) -> Any:
    """A plain value that stays as it is: containers and small arrays are copied."""
    if isinstance(value, np.ndarray):
        return value if value.nbytes > BIG_ARRAY_BYTES else value.copy()
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(still, value))
    if type(value) is dict:
        return {still(key): still(item) for key, item in value.items()}
    return value


def encode(value: Any) -> bytes:
    return _packer.encode(_wrap(value))


def decode(data: bytes) -> Any:
    return _unwrap(msgspec.msgpack.decode(data, ext_hook=_read))


def _wrap(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return msgspec.msgpack.Ext(ARRAY, _packer.encode([value.dtype.str, list(value.shape), array.tobytes()]))
    if isinstance(value, np.generic):
        return msgspec.msgpack.Ext(SCALAR, _packer.encode([value.dtype.str, value.tobytes()]))
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(INTEGER, str(value).encode())
    if isinstance(value, tuple):
        return msgspec.msgpack.Ext(TUPLE, _packer.encode([_wrap(item) for item in value]))
    if isinstance(value, set | frozenset):
        return msgspec.msgpack.Ext(SET, _packer.encode([_wrap(item) for item in value]))
    if isinstance(value, dict):
        pairs = [[_wrap(key), _wrap(item)] for key, item in value.items()]
        return msgspec.msgpack.Ext(DICT, _packer.encode(pairs))
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    return value


def _unwrap(value: Any) -> Any:
    return [_unwrap(item) for item in value] if isinstance(value, list) else value


def _read(code: int, data: memoryview) -> Any:
    if code == INTEGER:
        return int(bytes(data).decode())
    items = msgspec.msgpack.decode(data, ext_hook=_read)
    match code:
        case 3:  # ARRAY
            return np.frombuffer(items[2], np.dtype(items[0])).reshape(items[1]).copy()
        case 4:  # SCALAR
            return np.frombuffer(items[1], np.dtype(items[0]))[0]
        case 1:  # TUPLE
            return tuple(_unwrap(items))
        case 2:  # SET
            return set(_unwrap(items))
        case 6:  # DICT
            return {_unwrap(key): _unwrap(item) for key, item in items}
        case _:
            raise ValueError(f"plain value of unknown kind {code}")
