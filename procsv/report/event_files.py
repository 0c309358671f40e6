"""Event files as they are: the records that are appended to them, and the scalars in a record.

Used by `procsv top`, which follows them, and by the report's curves.  Changes nothing.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from procsv.base.system.data_file import open_stream

START_BYTES = 2**18  # of a file that is long already, read at the start by who wants its end
READ_BYTES_MAX = 2**22  # at a time

_HEAD = struct.Struct("<QI")  # of a record: its length, and the masked checksum of that


class Scalar(NamedTuple):
    tag: str
    step: int
    time_s: float  # Unix seconds
    value: float


def read_scalars(record: bytes) -> Iterator[Scalar]:
    """The finite scalars of an event; of a record that is none, nothing."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.util.tensor_util import make_ndarray

    try:
        event = Event.FromString(record)
    except DecodeError:
        return
    for value in event.summary.value:
        number = value.simple_value
        if value.WhichOneof("value") == "tensor" and not value.tensor.tensor_shape.dim:
            with contextlib.suppress(TypeError, ValueError):
                number = float(make_ndarray(value.tensor))
        elif value.WhichOneof("value") != "simple_value":
            continue
        if math.isfinite(number):
            yield Scalar(value.tag, event.step, event.wall_time, number)


def find_loss(tags: Iterable[str]) -> str:
    """Of some tags, what looks most like the loss; "" if nothing does."""
    named = [tag for tag in tags if "loss" in tag.lower()]
    return min(named, key=lambda tag: (tag.rpartition("/")[2].lower() != "loss", len(tag), tag), default="")


def newest_event_files(logdir: Path, count: int) -> list[Path]:
    """In the logdir and the directories in it, but for the watchdog's own; the newest last, as its values are."""
    found = []
    for pattern in ("events.out.tfevents.*", "*/events.out.tfevents.*"):
        for path in logdir.glob(pattern):
            with contextlib.suppress(OSError):
                if path.parent.name != "procsv":
                    found.append((path.stat().st_mtime, path))
    return [path for _, path in reversed(heapq.nlargest(count, found))]


class Tail:
    """What is appended to a file; of one that is there already its last `start` bytes are read first, too."""

    def __init__(self, path: Path, start: int = START_BYTES) -> None:
        self.path = path
        self._at = max(0, path.stat().st_size - start)
        self.is_cut = self._at > 0  # the first bytes read may lie within a record or a line

    def read_appended(self) -> bytes:
        with contextlib.suppress(OSError), open_stream(self.path, follows_links=True) as file:
            if file.seek(0, 2) < self._at:
                self._at = 0  # it was rotated or made anew
            file.seek(self._at)
            data = file.read(READ_BYTES_MAX)
            self._at += len(data)
            return data
        return b""


class EventFileTail:
    """The records that are appended to an event file."""

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
    """Where the first whole head of a record begins."""
    for at in range(len(data) - _HEAD.size + 1):
        if _HEAD.unpack_from(data, at)[1] == _masked(data[at : at + 8]):
            return at
    return len(data)


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
