"""Handle stale descriptors (ESTALE).

On a network filesystem, a descriptor becomes stale if its file was replaced or removed, or if the
server has exported the filesystem again.  It stays stale: fstat, read, write, fsync and even close
fail.  The path leads to the present file, so a process that keeps a descriptor must reopen the
file.  Data that the server never received is lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

TRIES_MAX = 3  # how often to read a file that is replaced each time between open and read

T = TypeVar("T")


def is_stale(error: OSError) -> bool:
    return error.errno == errno.ESTALE


def stat_open(fd: int) -> os.stat_result | None:
    """Returns the status of the open file; None if the descriptor is stale."""
    try:
        return os.fstat(fd)
    except OSError as error:
        if not is_stale(error):
            raise
        return None


def close(fd: int) -> None:
    """Closes a descriptor, stale or not."""
    try:
        os.close(fd)
    except OSError as error:
        if not is_stale(error):
            raise


def try_again(read: Callable[[], T]) -> T:
    """Calls `read`, which opens and reads a file, and returns its result.

    Tries again if another machine has replaced the file between open and read.
    """
    for _ in range(TRIES_MAX - 1):
        try:
            return read()
        except OSError as error:
            if not is_stale(error):
                raise
    return read()


def reopen(fd: int) -> bool:
    """Reopens a log under the same descriptor if it is stale; returns whether it did.

    Only a file opened for appending counts as a log; other files are not reopened.
    """
    with contextlib.suppress(OSError):  # the log is gone, or cannot be written now
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND and stat_open(fd) is None:
            path = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115
            new = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.dup2(new, fd, inheritable=os.get_inheritable(fd))
            finally:
                os.close(new)
            return True
    return False


def lies_at(fd: int, path: Path) -> bool:
    """Whether the open file is the file that is now at `path`.

    False also if the descriptor is stale.
    """
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_stale(error):
            return False
        raise
