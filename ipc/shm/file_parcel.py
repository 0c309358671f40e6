"""Assemble files in shared memory, and put them in place from there.

The trainer writes a file parcel (`ParcelWriter`), and the checkpoint service puts its file in place
(`place_parcel`).  A parcel gets its name only when it is whole.  It records where its file belongs,
and outlives the trainer that made it.  If the service dies before the file is in place, its
successor places the file.

    0       the contents, which become the whole file, or one member of a zip archive
    size    the order (msgpack of FileOrder), its length and the magic
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from procsv.base.encoding import decode_msgpack, encode_msgpack
from procsv.base.system import disk
from procsv.base.system.failpoints import declare, failpoint

_TAIL = struct.Struct("=Q16s")
_MAGIC = b"procsv-file-0001"
_NAME = re.compile(r"file\.(\d+)\.(\d+)$")
CHUNK_BYTES = 4 * 2**20

declare("parcel.publish", "parcel.place", "parcel.within", "parcel.placed")


class FileOrder(msgspec.Struct, frozen=True):
    """Where the contents of a parcel belong: they become a file, or one member of a zip archive.

    For a zip archive, the order also has all other members.
    """

    path: str  # absolute
    size: int  # bytes of the contents
    member: str = ""  # name of the contents in a zip archive; "": they are the whole file
    before: tuple[tuple[str, bytes], ...] = ()  # members of the archive before the contents: (name, data)
    after: tuple[tuple[str, bytes], ...] = ()  # members after the contents


_DECODER = msgspec.msgpack.Decoder(FileOrder)


class BadParcel(Exception):
    """The parcel is incomplete, or from another version."""


class ParcelWriter:
    """A parcel in the making: `write_at` its contents in any order, then `publish_parcel`."""

    def __init__(self, directory: Path, incarnation: int, number: int) -> None:
        """Raises OSError if there is no room for it."""
        self._path = directory / f"file.{incarnation}.{number}"
        self._making = directory / f".{self._path.name}.new"
        self._fd = disk.create(self._making, 0o600, replace=True)

    def write_at(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._fd, data, offset)
            offset, data = offset + count, data[count:]

    def publish_parcel(self, order: FileOrder) -> Path:
        """Gives the parcel its name.

        A kill before this leaves a draft.  The next trainer removes the draft.  It resumes from an
        older state, so it reaches the same point again and makes the parcel again.
        """
        tail = encode_msgpack(order)
        self.write_at(order.size, memoryview(tail + _TAIL.pack(len(tail), _MAGIC)))
        failpoint("parcel.publish")
        disk.rename(self._making, self._path)
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        disk.unlink_if_there(self._making)


def is_parcel(path: Path) -> bool:
    return _NAME.match(path.name) is not None


def list_parcels(directory: Path) -> list[Path]:
    """Returns the whole parcels in the order in which they were made."""
    found = [
        (int(match[1]), int(match[2]), path) for path in directory.glob("file.*") if (match := _NAME.match(path.name))
    ]
    return [path for _, _, path in sorted(found)]


def sweep_unfinished(directory: Path) -> None:
    """Removes unfinished parcels of dead trainers."""
    for path in directory.glob(".file.*.new"):
        with contextlib.suppress(OSError):
            disk.unlink_if_there(path)


def read_order(parcel: Path) -> FileOrder:
    """Returns the order in a parcel; BadParcel if it is incomplete or from another version."""
    with parcel.open("rb") as file:
        return _read_order(file)


def _read_order(file: IO[bytes]) -> FileOrder:
    end = file.seek(0, os.SEEK_END)
    if end < _TAIL.size:
        raise BadParcel("it is too short")
    file.seek(end - _TAIL.size)
    length, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _MAGIC or length > end - _TAIL.size:
        raise BadParcel("its end is missing")
    file.seek(end - _TAIL.size - length)
    try:
        return decode_msgpack(file.read(length), _DECODER)
    except msgspec.DecodeError as error:
        raise BadParcel(str(error)) from error


def place_parcel(parcel: Path) -> FileOrder:
    """Puts the file of a parcel in place, whole and on disk, and removes the parcel.

    OSError if the file cannot be written, BadParcel if the parcel is damaged.
    """
    with parcel.open("rb") as file:
        order = _read_order(file)
        target = Path(order.path)
        making = temporary_of(target)
        failpoint("parcel.place")
        try:
            fd = disk.create(making, replace=True)
            try:
                _write_file(fd, file, order)
                disk.fsync(fd)
            finally:
                os.close(fd)
            # A kill here leaves the temporary file.  The parcel still exists, so placing it again replaces that file.
            disk.rename(making, target)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink_if_there(making)
            raise
    disk.fsync_path(target.parent)
    failpoint("parcel.placed")
    disk.unlink_if_there(parcel)
    return order


def temporary_of(target: Path) -> Path:
    """Returns the path where a file is written before it replaces `target`.

    The path is always the same for one target, so files left by kills do not accumulate.
    """
    return target.with_name(f".procsv-{target.name}")


def _write_file(fd: int, file: IO[bytes], order: FileOrder) -> None:
    if not order.member:
        for piece in _pieces(file, order.size):
            disk.write_all(fd, piece)
            failpoint("parcel.within")
        return
    with os.fdopen(os.dup(fd), "wb") as raw, zipfile.ZipFile(raw, "w") as archive:
        for name, data in order.before:
            archive.writestr(name, data)
        with archive.open(order.member, "w", force_zip64=order.size > zipfile.ZIP64_LIMIT // 2) as member:
            for piece in _pieces(file, order.size):
                member.write(piece)
                failpoint("parcel.within")
        for name, data in order.after:
            archive.writestr(name, data)


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    file.seek(0)
    while size:
        piece = file.read(min(size, CHUNK_BYTES))
        if not piece:
            raise BadParcel("its contents are missing")
        size -= len(piece)
        yield piece
