"""Progress of this process's jobs: a count that every piece of work advances, and that the heartbeat shows.

Advanced by the gate to the disk (disk.py) and by whoever reads or checks large things a piece at a time; read by the checkpoint
service's main loop.  A job that is slow advances it now and then, one that is stuck never does.  Decides nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_count = 0
_untracked = 0  # threads in work that cannot advance the count
_lock = threading.Lock()


def advance() -> None:
    """Count one more piece.  Any thread may call it; that two at a time may count as one makes no difference."""
    global _count
    _count += 1


def value() -> int | None:
    """The count, or None while work goes on that cannot advance it."""
    return None if _untracked else _count


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """For a call of a library or of the system that takes as long as it takes, and says nothing meanwhile."""
    global _untracked
    with _lock:
        _untracked += 1
    try:
        yield
    finally:
        with _lock:
            _untracked -= 1
        advance()
