"""The newest values of a training's loss, from its event files or, where they have none, from what it prints.

Used by readings.py.  Reads what is appended, never a file from its beginning once that is long, and changes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from procsv.base.system.data_file import open_stream

FILES_MAX = 4  # event files that are followed at a time: the newest
START_BYTES = 2**18  # of a file that is long already, read at the start
READ_BYTES_MAX = 2**22  # at a time
VALUES_MAX = 600

_HEAD = struct.Struct("<QI")  # of a record: its length, and the masked checksum of that
_PRINTED = re.compile(rb"\bloss\b[^\w\n]{1,3}([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.IGNORECASE)


class Tail:
    """What is appended to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = max(0, path.stat().st_size - START_BYTES)
        self.is_cut = self._at > 0  # the first bytes read may lie within a record or a line

    def read(self) -> bytes:
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

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._rest = b""

    def records(self) -> Iterator[bytes]:
        data = self._rest + self._tail.read()
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


class Losses:
    """The last values of the scalar `tag`, or of what looks like the loss; `name` says which it is."""

    def __init__(self, tag: str | None) -> None:
        self._tag = tag
        self._scalars: dict[str, collections.deque[float]] = {}
        self._files: dict[Path, EventFileTail] = {}
        self._log: Tail | None = None
        self._rest = b""
        self._printed: collections.deque[float] = collections.deque(maxlen=VALUES_MAX)

    @property
    def name(self) -> str:
        if self._tag is not None:
            return self._tag
        named = [tag for tag in self._scalars if "loss" in tag.lower()]
        return min(named, key=lambda tag: (tag.rpartition("/")[2].lower() != "loss", len(tag), tag), default="loss")

    @property
    def values(self) -> list[float]:
        return list(self._scalars.get(self.name) or (self._printed if self._tag is None else ()))

    def read(self, logdir: Path, log: Path) -> None:
        """What has been added since the last call; `log` is that of the newest trainer."""
        for path in _newest_event_files(logdir):
            with contextlib.suppress(OSError):
                if path not in self._files:
                    self._files[path] = EventFileTail(path)
                for record in self._files[path].records():
                    self._enter(record)
        if self._tag is None and not self._scalars.get(self.name):
            self._read_log(log)

    def _enter(self, record: bytes) -> None:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray

        with contextlib.suppress(DecodeError):
            for value in Event.FromString(record).summary.value:
                number = value.simple_value
                if value.WhichOneof("value") == "tensor" and not value.tensor.tensor_shape.dim:
                    with contextlib.suppress(TypeError, ValueError):
                        number = float(make_ndarray(value.tensor))
                elif value.WhichOneof("value") != "simple_value":
                    continue
                if math.isfinite(number):
                    self._scalars.setdefault(value.tag, collections.deque(maxlen=VALUES_MAX)).append(number)

    def _read_log(self, log: Path) -> None:
        with contextlib.suppress(OSError):
            if self._log is None or self._log.path != log:
                self._log, self._rest = Tail(log), b""
            lines = (self._rest + self._log.read()).replace(b"\r", b"\n").split(b"\n")
            self._rest = lines.pop()[-1000:]
            self._printed += [float(match[1]) for line in lines if (match := _PRINTED.search(line))]


def _newest_event_files(logdir: Path) -> list[Path]:
    """In the logdir and the directories in it, but for the watchdog's own; the newest last, as its values are."""
    found = []
    for pattern in ("events.out.tfevents.*", "*/events.out.tfevents.*"):
        for path in logdir.glob(pattern):
            with contextlib.suppress(OSError):
                if path.parent.name != "procsv":
                    found.append((path.stat().st_mtime, path))
    return [path for _, path in reversed(heapq.nlargest(FILES_MAX, found))]
