"""Read event files without TensorFlow: the records appended to them, and the scalars in a record.

Used by losses.py, which follows the files, and by the report's curves. It only reads.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from procsv.base.system.data_file import open_stream

START_BYTES = 2**18  # how much of the end of a long file a reader starts with
READ_BYTES_MAX = 2**22  # per read

_HEAD = struct.Struct("<QI")  # a record's head: its length, and the masked checksum of the length

_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|eval|test|dev)", re.IGNORECASE)  # in names of validation and test scalars

# Protobuf field numbers of Event, of Summary.Value and of TensorProto, which encodes a scalar by its type.
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TYPE, _SHAPE, _CONTENT = 1, 2, 4
_TENSOR_FORMS = {1: ("<f", 5), 2: ("<d", 6)}


class Scalar(NamedTuple):
    tag: str
    step: int
    time_s: float  # Unix seconds
    value: float


def read_scalars(record: bytes) -> list[Scalar]:
    """Return the finite scalars of an event; nothing if the record is not an event.

    This decodes protobuf's wire format by hand: TensorFlow's own classes would cost the watchdog
    and the command line 20 MB and half a second.
    """
    with contextlib.suppress(ValueError, TypeError, LookupError, struct.error):
        event = list(_fields(record))
        only = dict(event)
        step, time_s = _signed(only.get(_STEP, 0)), _unpack("<d", only.get(_WALL_TIME, bytes(8)))
        values = [
            dict(_fields(value)) for number, summary in event if number == _SUMMARY for _, value in _fields(summary)
        ]
        found = [Scalar(str(value[_TAG], errors="replace"), step, time_s, _number(value)) for value in values]
        return [one for one in found if math.isfinite(one.value)]
    return []


def _number(value: Mapping[int, Any]) -> float:
    """Return the value of a Summary.Value; NaN if it is not a scalar."""
    if _SIMPLE_VALUE in value:
        return _unpack("<f", value[_SIMPLE_VALUE])
    tensor = dict(_fields(value.get(_TENSOR, b"")))
    if tensor.get(_SHAPE) or (form := _TENSOR_FORMS.get(tensor.get(_TYPE, 0))) is None:
        return math.nan
    format_, field = form
    data = tensor.get(_CONTENT) or tensor.get(field)
    return 0.0 if data is None else _unpack(format_, data)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field: an int, or bytes for any other type.

    Raises ValueError or IndexError if `message` is not a protobuf message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case kind:
                raise ValueError(kind)
        if size > len(message) - at:
            raise ValueError(size)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the position after it."""
    number = 0
    for shift in range(0, 64, 7):
        byte = message[at + shift // 7]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + shift // 7 + 1
    raise ValueError(number)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _unpack(format_: str, data: bytes) -> float:
    number: float
    (number,) = struct.unpack(format_, data)
    return number


def find_loss(tags: Iterable[str]) -> str:
    """Return the tag that looks most like the training loss; "" if no tag has "loss" in it.

    A tag may begin with the name of a directory.
    """
    named = [tag for tag in tags if "loss" in tag.lower()]
    return min(
        named,
        key=lambda tag: (bool(_HELD_OUT.search(tag)), short_name(tag).lower() != "loss", len(tag), tag),
        default="",
    )


def short_name(tag: str) -> str:
    """Shorten a tag for narrow columns. A tag of held-out data stays whole."""
    return tag if _HELD_OUT.search(tag) else tag.rpartition(": ")[2].rpartition("/")[2]


def newest_event_files(logdir: Path, count: int) -> list[Path]:
    """Return the newest event files of the logdir and its subdirectories, the newest last.

    The watchdog's own event files are left out. The newest comes last because its values are the
    newest.
    """
    found = []
    for pattern in ("events.out.tfevents.*", "*/events.out.tfevents.*"):
        for path in logdir.glob(pattern):
            with contextlib.suppress(OSError):
                if path.parent.name != "procsv":
                    found.append((path.stat().st_mtime, path))
    return [path for _, path in reversed(heapq.nlargest(count, found))]


class Tail:
    """Reads the last `start` bytes of a file, and then what is appended to it."""

    def __init__(self, path: Path, start: int = START_BYTES) -> None:
        self.path = path
        self._at = max(0, path.stat().st_size - start)
        self.is_cut = self._at > 0  # reading may begin inside a record or a line

    def read_appended(self) -> bytes:
        with contextlib.suppress(OSError), open_stream(self.path, follows_links=True) as file:
            if file.seek(0, 2) < self._at:
                self._at = 0  # rotated or rewritten
            file.seek(self._at)
            data = file.read(READ_BYTES_MAX)
            self._at += len(data)
            return data
        return b""


class EventFileTail:
    """Reads the records that are appended to an event file."""

    def __init__(self, path: Path, start: int = START_BYTES) -> None:
        self._tail = Tail(path, start)
        self._rest = b""

    def records(self) -> Iterator[bytes]:
        data = self._rest + self._tail.read_appended()
        at = 0
        if self._tail.is_cut:
            at = _find_record(data)
            self._tail.is_cut = False
        while len(data) - at >= _HEAD.size:
            length, checksum = _HEAD.unpack_from(data, at)
            if checksum != _masked(data[at : at + 8]):
                at += max(1, _find_record(data[at + 1 :]) + 1)
                continue
            end = at + _HEAD.size + length + 4
            if end > len(data) and length <= READ_BYTES_MAX:
                break
            yield data[at + _HEAD.size : end - 4]
            at = end
        self._rest = data[at:]


def _find_record(data: bytes) -> int:
    """Return where the first valid record head begins; the length of `data` if there is none."""
    for at in range(len(data) - _HEAD.size + 1):
        if _HEAD.unpack_from(data, at)[1] == _masked(data[at : at + 8]):
            return at
    return len(data)


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
