"""Reading files that anybody may have put where they lie: in a logdir, or beside one that was copied from elsewhere.

A FIFO would make its reader wait, a device may never end, a link leads to another directory, and a file of terabytes takes all
memory.  None of them is what we wrote.
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

SMALL_BYTES_MAX = 2**24  # of a file of fields; ours are far smaller
LARGE_BYTES_MAX = 2**31  # of a journal, or the index of a checkpoint

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class NotAFile(UserError, OSError):
    """What lies there is no regular file, or larger than any of ours."""

    def __init__(self, path: str | Path, what: str) -> None:
        UserError.__init__(self, f"{path} is {what}, and not a file of procsv's: remove it", exit_codes.LOGDIR_UNUSABLE)
        self.errno, self.strerror, self.filename = errno.EINVAL, f"it is {what}", str(path)

    def __str__(self) -> str:
        return str(self.args[0])


def open_data(path: str | Path, flags: int = os.O_RDONLY, *, follows_links: bool = False) -> int:
    """A descriptor of the regular file `path`.  NotAFile, without waiting, if it is anything else; other OSErrors pass through.

    `flags`: O_RDONLY, or more; O_CREAT makes it, ours alone.  `follows_links`: a link to a regular file will do.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW), 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFile(path, "a symbolic link") from None
        if error.errno == errno.ENXIO:  # a FIFO without a reader, opened for writing, or a socket
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
    """The same, for reading, as a file object."""
    return os.fdopen(open_data(path, follows_links=follows_links), "rb")


def read_data(path: str | Path, bytes_max: int = SMALL_BYTES_MAX, *, follows_links: bool = False) -> bytes:
    """What is in the regular file `path`; NotAFile if it has more than `bytes_max` bytes, too."""
    fd = open_data(path, follows_links=follows_links)
    try:
        if os.fstat(fd).st_size > bytes_max:
            raise NotAFile(path, f"larger than {bytes_max} bytes")
        pieces, left = [], bytes_max + 1  # it may grow while it is read
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
