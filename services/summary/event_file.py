"""Event files as TensorBoard reads them: names, framing, appending, and repair of a torn tail.

Called by stream_file.py (a stream's file) and by tests.  Never imports TensorFlow, never buffers: what `append`
returns for is in the file, whatever becomes of the process.

    record = length (u64, little-endian) | masked crc32c of length | data | masked crc32c of data
    first record of a file: Event(wall_time, file_version "brain.Event:2", source_metadata.writer)
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata

from procsv.base.system import stale
from procsv.base.system.failpoints import declare, failpoint

CHUNK_BYTES = 2**20  # a parcel passes through memory in pieces of this size
RECORD_BYTES_MAX = 2**31  # protobuf's own limit; a longer length in a tail is garbage
WRITER = "procsv.services.summary"

_NAME = re.compile(r"^events\.out\.tfevents\.(\d{10})\.")
_SECONDS_MAX = 9_999_999_999
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _CRC.size

declare("summary.mid_record")


def _masked(crc: int) -> bytes:
    """As TFRecord stores a checksum: rotated and shifted, so that data that holds checksums checks well."""
    return _CRC.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    """One record, framed."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _masked(google_crc32c.value(length)), data, _masked(google_crc32c.value(data))))


def version_event(wall_s: float) -> bytes:
    """The serialized Event that every event file begins with."""
    source = SourceMetadata(writer=WRITER)
    data: bytes = Event(wall_time=wall_s, file_version="brain.Event:2", source_metadata=source).SerializeToString()
    return data


def new_name(directory: Path, wall_s: float, number: int, suffix: str) -> str:
    """A file name that nobody has and that sorts after every event file of `directory`.

    TensorBoard reads a directory in the order of the names and never turns back; two files of one second, or a
    clock that was set back, would hide the newer.  So the seconds in the name run ahead where they must.
    """
    newest = 0
    with contextlib.suppress(FileNotFoundError):
        newest = max((int(m[1]) for name in os.listdir(directory) if (m := _NAME.match(name))), default=0)  # noqa: PTH208
    seconds = int(wall_s) if newest >= _SECONDS_MAX else max(int(wall_s), newest + 1)
    return f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{number}{suffix}"


class EventFile:
    """One event file, open for appending.  `offset` is where its whole, wanted records end."""

    def __init__(self, path: Path, offset: int = 0, *, is_new: bool = False) -> None:
        """Opens `path`, which may not be there yet.  What lies behind `offset` is dealt with by `repair`, or cut
        off by the first `append`.  `is_new`: FileExistsError if somebody has made it."""
        self.path = path
        self.offset = offset
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else 0), 0o644)
        self._is_clean = False

    def append_records(self, records: Iterable[bytes | Path], wall_s: float) -> None:
        """Writes the records (a Path: the parcel that holds one) behind the whole ones, with the file's first
        record before them if there is none yet.

        OSError passes through and nothing of this call is left in the file; if even that cannot be had now, the
        next call cuts it off first.
        """
        if not self._is_clean:
            os.ftruncate(self._fd, self.offset)
        self._is_clean = False
        at, small = self.offset, [frame(version_event(wall_s))] if not self.offset else []
        try:
            for record in records:
                if isinstance(record, bytes):
                    small.append(frame(record))
                else:
                    at = self._write_parcel(self._write_frames(at, small), record)
                    small = []
            at = self._write_frames(at, small)
        except BaseException:
            self.cut_back(self.offset)
            raise
        self._is_clean = True
        self.offset = at

    def cut_back(self, offset: int) -> None:
        """Takes back what was written behind `offset`; if the disk refuses, the next append begins with it."""
        self.offset, self._is_clean = offset, False
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, offset)
            self._is_clean = True

    def _write_frames(self, at: int, frames: Sequence[bytes]) -> int:
        data = b"".join(frames)
        if failpoint("summary.mid_record"):
            os.pwrite(self._fd, data[: max(1, len(data) - 5)], at)
            failpoint("summary.mid_record")  # `1*torn->kill`: killed with half a record in the file
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        failpoint("disk.full")
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)  # killed within: a torn record behind the position; repair cuts it
            view, at = view[done:], at + done
        return at

    def _write_parcel(self, at: int, parcel: Path) -> int:
        """Appends the one record that is in `parcel`, a piece at a time."""
        with parcel.open("rb") as source:
            length = _LENGTH.pack(os.fstat(source.fileno()).st_size)
            crc = 0
            at = self._write_frames(at, (length, _masked(google_crc32c.value(length))))
            while piece := source.read(CHUNK_BYTES):
                crc = google_crc32c.extend(crc, piece)
                at = self._write_frames(at, (piece,))
            return self._write_frames(at, (_masked(crc),))

    def repair(self) -> int:
        """Takes over the whole records behind `offset` and cuts off a torn one; how many of ours there were.

        They were written by a process that was killed before it could note it; whoever sent them may be dead too
        and cannot send them again.  The file's first record is not counted.
        """
        count = -1 if self.offset == 0 else 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(self.offset)
            while (size := _whole_record(file)) is not None:
                self.offset += size
                count += 1
        os.ftruncate(self._fd, self.offset)
        self._is_clean = True
        return max(count, 0)

    def trouble(self) -> str:
        """Why what is written to it now would be lost; "" if it would not.  One that is stale is opened anew for that."""
        there = stale.stat_open(self._fd)
        if there is None:
            with contextlib.suppress(FileNotFoundError):
                new = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                self.close()
                self._fd, self._is_clean = new, False
                there = os.fstat(new)
        if there is None or there.st_nlink == 0:
            return "was deleted"
        return "is shorter than what was written to it" if there.st_size < self.offset else ""

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            stale.close(self._fd)
            self._fd = -1


def _whole_record(file: BinaryIO) -> int | None:
    """Bytes of the record at the file's position, which moves behind it; None if it is torn or not there."""
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES or head[_LENGTH.size :] != _masked(google_crc32c.value(head[: _LENGTH.size])):
        return None
    (length,) = _LENGTH.unpack_from(head)
    if length > RECORD_BYTES_MAX:
        return None
    crc, left = 0, length
    while left:
        piece = file.read(min(left, CHUNK_BYTES))
        if not piece:
            return None
        crc, left = google_crc32c.extend(crc, piece), left - len(piece)
    if file.read(_CRC.size) != _masked(crc):
        return None
    return int(_HEAD_BYTES + length + _CRC.size)


def read_records(path: Path) -> tuple[list[bytes], int]:
    """The whole records of a file, and how many bytes at its end are none."""
    records: list[bytes] = []
    with path.open("rb") as file:
        while True:
            at = file.tell()
            size = _whole_record(file)
            if size is None:
                return records, path.stat().st_size - at
            records.append(os.pread(file.fileno(), size - _HEAD_BYTES - _CRC.size, at + _HEAD_BYTES))
