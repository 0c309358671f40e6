"""The lock on a directory's `checkpoint` file, between the checkpoint service and a Saver in the trainer.

The service holds it during a commit, the trainer during a save of the program's own.  It is a lock on the directory
itself, so it leaves no file behind, and the kernel releases a dead process's.  Never waits without end: a process that
does not get the lock in time goes on without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

LOCK_S_MAX = 30.0  # a save takes seconds; one that takes longer may be frozen
LOOK_S = 0.01


@contextlib.contextmanager
def hold_checkpoint_lock(directory: Path, timeout_s: float = LOCK_S_MAX) -> Iterator[bool]:
    """Locks the directory.  Yields whether that succeeded within `timeout_s`; False also where the filesystem has no locks."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _wait_for_lock(fd, timeout_s)
    finally:
        os.close(fd)  # and with it the lock


def is_checkpoint_locked(directory: Path) -> bool:
    """Whether a process holds the lock now.  False where the filesystem cannot say."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _wait_for_lock(fd: int, timeout_s: float) -> bool:
    deadline_s, pause = time.monotonic() + timeout_s, Event()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            pause.wait(LOOK_S)
        except OSError:
            return False
        else:
            return True
