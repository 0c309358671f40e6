"""Write event files as TensorBoard reads them: choose names, append records, repair a torn tail.

stream_file.py and the tests use it.  It never imports TensorFlow and never buffers: once
`append_records` returns, the records are in the file even if the process is killed.

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

CHUNK_BYTES = 2**20  # a parcel is copied in pieces of this size
RECORD_BYTES_MAX = 2**31  # protobuf's own limit; a greater length in a tail is garbage
WRITER = "procsv.services.summary"

_NAME = re.compile(r"^events\.out\.tfevents\.(\d{10})\.")
_SECONDS_MAX = 9_999_999_999
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _CRC.size

declare("summary.mid_record")


def _masked(crc: int) -> bytes:
    """Masks a checksum as TFRecord does, because a CRC of data that contains CRCs is weak."""
    return _CRC.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    """Returns `data` framed as one record."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _masked(google_crc32c.value(length)), data, _masked(google_crc32c.value(data))))


def version_event(wall_s: float) -> bytes:
    """Returns the serialized Event that begins every event file."""
    source = SourceMetadata(writer=WRITER)
    data: bytes = Event(wall_time=wall_s, file_version="brain.Event:2", source_metadata=source).SerializeToString()
    return data


def new_name(directory: Path, wall_s: float, number: int, suffix: str) -> str:
    """Returns an unused file name that sorts after every event file in `directory`.

    TensorBoard reads a directory in name order and never goes back, so it would miss a newer file
    whose name sorts first.  With the plain time this could happen for two files of one second, or
    after the clock was set back.  So the seconds in the name run ahead of the clock if they must.
    """
    newest = 0
    with contextlib.suppress(FileNotFoundError):
        newest = max((int(m[1]) for name in os.listdir(directory) if (m := _NAME.match(name))), default=0)  # noqa: PTH208
    seconds = int(wall_s) if newest >= _SECONDS_MAX else max(int(wall_s), newest + 1)
    return f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{number}{suffix}"


class EventFile:
    """One event file, open for appending.  `offset` is the end of its valid records."""

    def __init__(self, path: Path, offset: int = 0, *, is_new: bool = False) -> None:
        """Opens `path`, and creates the file if it does not exist.

        Whatever follows `offset` in the file does not count yet.  Either `repair` keeps the whole
        records there, or the first `append_records` cuts all of it off.  `is_new`: raise
        FileExistsError if the file exists.
        """
        self.path = path
        self.offset = offset
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else 0), 0o644)
        self._is_clean = False  # whether the file is known to end at `offset`

    def append_records(self, records: Iterable[bytes | Path], wall_s: float) -> None:
        """Appends the records (a Path names a parcel that holds one).

        An empty file gets its version record first.  After an OSError no record of this call stays
        in the file.  If the disk refuses even to truncate the file, the next call truncates it
        first.
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
        """Truncates the file to `offset`.  If the disk refuses, the next append tries again."""
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
            # Killed in the middle: a torn record is left after `offset`, and `repair` cuts it off.
            done = os.pwrite(self._fd, view, at)
            view, at = view[done:], at + done
        return at

    def _write_parcel(self, at: int, parcel: Path) -> int:
        """Appends the record in `parcel`, a piece at a time."""
        with parcel.open("rb") as source:
            length = _LENGTH.pack(os.fstat(source.fileno()).st_size)
            crc = 0
            at = self._write_frames(at, (length, _masked(google_crc32c.value(length))))
            while piece := source.read(CHUNK_BYTES):
                crc = google_crc32c.extend(crc, piece)
                at = self._write_frames(at, (piece,))
            return self._write_frames(at, (_masked(crc),))

    def repair(self) -> int:
        """Keeps the whole records after `offset`, and cuts off a torn one.

        Returns how many records it kept, not counting the version record.  A process wrote these
        records and was killed before it could note them in the position file.  Their sender may be
        dead too, and then cannot send them again.
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
        """Returns why a record written now would be lost, or "" if the file is as we left it.

        Reopens the file first if its handle is stale (NFS).
        """
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
    """Reads the record at the file's position and returns its size in bytes.

    None if the record is torn or missing.
    """
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
    """Returns the whole records of a file, and the number of bytes after the last of them."""
    records: list[bytes] = []
    with path.open("rb") as file:
        while True:
            at = file.tell()
            size = _whole_record(file)
            if size is None:
                return records, path.stat().st_size - at
            records.append(os.pread(file.fileno(), size - _HEAD_BYTES - _CRC.size, at + _HEAD_BYTES))
