"""Stale handles: what a network filesystem says (ESTALE) of a file that its server has exported anew, or has replaced or removed.

A descriptor that is stale stays so, and whatever is done with it fails: fstat, read, write, fsync, and the close.  Its path leads to
what lies there now, so who keeps a descriptor opens it anew.  What was written and the server never got is lost with the handle.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

TRIES_MAX = 3  # of a read, each of which finds the file replaced once it is open

T = TypeVar("T")


def is_stale(error: OSError) -> bool:
    return error.errno == errno.ESTALE


def stat_open(fd: int) -> os.stat_result | None:
    """What is open as `fd`; None if that is stale."""
    try:
        return os.fstat(fd)
    except OSError as error:
        if not is_stale(error):
            raise
        return None


def close(fd: int) -> None:
    """Closes it, stale or not."""
    try:
        os.close(fd)
    except OSError as error:
        if not is_stale(error):
            raise


def try_again(read: Callable[[], T]) -> T:
    """What `read` returns, which opens a file and reads it: once more where another machine has replaced that in between."""
    for _ in range(TRIES_MAX - 1):
        try:
            return read()
        except OSError as error:
            if not is_stale(error):
                raise
    return read()


def reopen(fd: int) -> bool:
    """Opens the log that is open as `fd` anew, under the same number, if it is stale; whether that was done.

    A log is what was opened for appending: nothing else is anybody's to open anew.
    """
    with contextlib.suppress(OSError):  # it is not there any more, or cannot be written now
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
    """Whether what is open as `fd` is what lies at `path` now; False as well if it is stale."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_stale(error):
            return False
        raise
