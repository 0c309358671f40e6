"""Encode and decode JSON and MessagePack, and seal important files with a checksum.

procsv's JSON files and all its messages pass through here.  All damaged data raises
msgspec.DecodeError; the caller decides what a damaged file means.

Python represents bytes that are not UTF-8 in file names, arguments and the environment as lone
surrogates, U+DC80 to U+DCFF.  Neither format can hold them, so each is written as the six
characters `\\udcXX`.  If a text itself contains such characters, its backslash is written as
`\\u005c`, so that decoding restores the original.  People and other programs read valid UTF-8 in
any case.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import xxhash

T = TypeVar("T")

_BACKSLASH = r"\\u005c"
_WRITTEN = re.compile(r"\\u(d[89a-f][0-9a-f]{2}|005c)")
_ESCAPED = re.compile(_WRITTEN.pattern.encode())
_IN_JSON = re.compile(rb"\\" + _ESCAPED.pattern)  # JSON doubles the backslash

CHECKSUM = "checksum"  # last field of a sealed object: xxh3_64, in hex, of the other fields as msgspec writes them


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decodes `data` as a `kind`.

    msgspec.DecodeError if it is not one, is not UTF-8, or is nested too deeply.
    """
    with _one_error():
        if _IN_JSON.search(data) is None:
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(_unescape(msgspec.json.decode(data)), kind, str_keys=True)


def encode_json(value: object) -> bytes:
    """Encodes `value` as JSON; decode_json restores every string."""
    with contextlib.suppress(UnicodeEncodeError):
        data = msgspec.json.encode(value)
        if _IN_JSON.search(data) is None:
            return data
    return msgspec.json.encode(_escape(msgspec.to_builtins(value)))


def encode_msgpack(value: object) -> bytes:
    """Encodes `value` as MessagePack; decode_msgpack restores every string."""
    with contextlib.suppress(UnicodeEncodeError):
        data = msgspec.msgpack.encode(value)
        if _ESCAPED.search(data) is None:
            return data
    return msgspec.msgpack.encode(_escape(msgspec.to_builtins(value, builtin_types=(bytes,))))


def decode_msgpack(data: bytes | bytearray, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Decodes `data` with `decoder`; msgspec.DecodeError if it does not fit."""
    with _one_error():
        if _ESCAPED.search(data) is None:
            return decoder.decode(data)
        kind: type[T] = decoder.type
        return msgspec.convert(_unescape(msgspec.msgpack.decode(data)), kind, builtin_types=(bytes,))


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def indent_json(value: object) -> str:
    """Encodes `value` as indented JSON for people."""
    return msgspec.json.format(encode_json(value), indent=2).decode()


def seal(data: bytes) -> bytes:
    """Adds a checksum to a non-empty JSON object."""
    return data[:-1] + f',"{CHECKSUM}":"{_checksum(msgspec.json.decode(data))}"}}'.encode()


def decode_sealed(data: bytes, kind: type[T], *, may_lack_seal: bool = False) -> T:
    """Decodes `data` as a `kind`; msgspec.DecodeError if it is not one, or its checksum is wrong.

    `may_lack_seal`: for a file that people, or an earlier procsv, may have written.
    """
    with _one_error():
        fields = msgspec.json.decode(data, type=dict[str, Any])
    told = fields.pop(CHECKSUM, None)
    if told != _checksum(fields) and not (told is None and may_lack_seal):
        raise msgspec.DecodeError("it does not match its own checksum")
    return decode_json(data, kind)


def _checksum(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(fields))


def _escape(value: object) -> object:
    return _change_texts(value, _escape_text)


def _unescape(value: object) -> object:
    return _change_texts(value, lambda text: _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text))


def _escape_text(text: str) -> str:
    return _WRITTEN.sub(rf"{_BACKSLASH}u\1", text).encode("utf-8", "backslashreplace").decode()


def _change_texts(value: object, change: Callable[[str], str]) -> object:
    """Returns `value`, built of plain types, with every string in it changed."""
    match value:
        case str():
            return change(value)
        case dict():
            return {_change_texts(key, change): _change_texts(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_change_texts(item, change) for item in value]
        case _:
            return value
