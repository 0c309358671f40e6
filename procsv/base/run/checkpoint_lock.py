"""Lock a directory's `checkpoint` file between the checkpoint service and a Saver in the trainer.

The service holds the lock during a commit, and the trainer during the program's own save.  It is a
lock on the directory itself, so it leaves no file behind, and the kernel releases a dead process's
lock.  A process that does not get it in time goes on without it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from procsv.base.system.locks import try_lock

LOCK_S_MAX = 30.0  # a save takes seconds; one that takes longer may be frozen
LOOK_S = 0.01


@contextlib.contextmanager
def hold_checkpoint_lock(directory: Path, timeout_s: float = LOCK_S_MAX) -> Iterator[bool]:
    """Locks the directory; yields whether that succeeded within `timeout_s`.

    False also if the filesystem has no locks.
    """
    with contextlib.ExitStack() as stack:
        try:
            is_held = _wait_for_lock(_open_directory(stack, directory), timeout_s)
        except OSError:
            is_held = False
        yield is_held


def is_checkpoint_locked(directory: Path) -> bool:
    """Whether a process holds the lock now.  False if the filesystem cannot tell."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        return not try_lock(_open_directory(stack, directory))
    return False


def _open_directory(stack: contextlib.ExitStack, directory: Path) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)  # which also releases the lock
    return fd


def _wait_for_lock(fd: int, timeout_s: float) -> bool:
    deadline_s, pause = time.monotonic() + timeout_s, Event()
    while not (is_held := try_lock(fd)) and time.monotonic() < deadline_s:
        pause.wait(LOOK_S)
    return is_held
