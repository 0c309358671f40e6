"""Read files that somebody else may have put there, as in a logdir copied from elsewhere.

A FIFO would block its reader, a device may never end, a link may lead to another directory, and a
file of terabytes takes all memory.  procsv writes none of these, so this module refuses them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.system import stale

SMALL_BYTES_MAX = 2**24  # for a small file such as run.json; ours are far smaller
LARGE_BYTES_MAX = 2**31  # for a journal, or the index of a checkpoint

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class NotAFile(UserError, OSError):
    """Not a regular file, or one that is larger than any of ours."""

    def __init__(self, path: str | Path, what: str) -> None:
        UserError.__init__(self, f"{path} is {what}, not a file of procsv's: remove it", exit_codes.LOGDIR_UNUSABLE)
        self.errno, self.strerror, self.filename = errno.EINVAL, f"it is {what}", str(path)

    def __str__(self) -> str:
        return str(self.args[0])


def open_data(path: str | Path, flags: int = os.O_RDONLY, *, follows_links: bool = False) -> int:
    """Opens the regular file `path` and returns its descriptor.

    NotAFile, without waiting, if it is anything else; other OSErrors pass through.  `flags`:
    O_RDONLY, or more; O_CREAT creates a file that only we can access.  `follows_links`: accept a
    link to a regular file.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW), 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFile(path, "a symbolic link") from None
        if error.errno == errno.ENXIO:  # a socket, or a FIFO without a reader that is opened for writing
            raise NotAFile(path, _kind_of(path)) from None
        raise
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
    except OSError:
        stale.close(fd)
        raise
    if kind == stat.S_IFDIR:
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        os.close(fd)
        raise NotAFile(path, _KINDS.get(kind, "a special file"))
    return fd


def open_stream(path: str | Path, *, follows_links: bool = False) -> BinaryIO:
    """Opens the regular file `path` for reading, as a file object."""
    return os.fdopen(open_data(path, follows_links=follows_links), "rb")


def read_data(path: str | Path, bytes_max: int = SMALL_BYTES_MAX, *, follows_links: bool = False) -> bytes:
    """Reads the regular file `path`; NotAFile also if it has more than `bytes_max` bytes."""
    fd = open_data(path, follows_links=follows_links)
    try:
        if os.fstat(fd).st_size > bytes_max:
            raise NotAFile(path, f"larger than {bytes_max} bytes")
        pieces, left = [], bytes_max + 1  # the file may grow while it is read
        while left and (piece := os.read(fd, min(left, 2**20))):
            pieces.append(piece)
            left -= len(piece)
        if not left:
            raise NotAFile(path, f"larger than {bytes_max} bytes")
        return b"".join(pieces)
    finally:
        stale.close(fd)


def _kind_of(path: str | Path) -> str:
    try:
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "a special file")
    except OSError:
        return "a special file"
