"""JSON: any text can be written; of a damaged file one error says whatever is wrong, and a checksum where it matters.

Used for every small file that procsv reads.  Who catches the error decides what the file's loss means.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import xxhash

T = TypeVar("T")

CHECKSUM = "checksum"  # the last field of a sealed object: xxh3_64, in hex, of all others as msgspec writes them


def decode_json(data: bytes, kind: type[T]) -> T:
    """`data` as a `kind`; msgspec.DecodeError if it is not one, is not UTF-8, or is nested too deeply to be one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def encode_json(value: object) -> bytes:
    """JSON of `value`; characters that no message can carry are written out."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(escape_surrogates(msgspec.to_builtins(value)))


def indent_json(value: object) -> str:
    """JSON of `value` for people to read."""
    return msgspec.json.format(encode_json(value), indent=2).decode()


def seal(data: bytes) -> bytes:
    """A JSON object, not empty, with its checksum."""
    return data[:-1] + f',"{CHECKSUM}":"{_checksum(msgspec.json.decode(data))}"}}'.encode()


def decode_sealed(data: bytes, kind: type[T], *, may_lack_seal: bool = False) -> T:
    """`data` as a `kind`; msgspec.DecodeError if it is not one, or not what was sealed.

    `may_lack_seal`: of a file that people, or an earlier procsv, may have written.
    """
    fields = decode_json(data, dict)
    told = fields.pop(CHECKSUM, None)
    if told != _checksum(fields) and not (told is None and may_lack_seal):
        raise msgspec.DecodeError("it does not match its own checksum")
    return decode_json(data, kind)


def _checksum(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(fields))


def escape_surrogates(value: object) -> object:
    """`value`, built of plain types, with every half surrogate in its strings written out as \\udcXX.

    Python reads bytes that are not UTF-8 in names and arguments into such characters; no message can carry them.
    """
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {escape_surrogates(key): escape_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [escape_surrogates(item) for item in value]
        case _:
            return value
