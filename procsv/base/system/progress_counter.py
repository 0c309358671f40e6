"""Progress of this process's jobs: a count that every piece of work advances, and that the heartbeat shows.

Moved by the gate to the disk (disk.py) and by whoever reads or checks large things a piece at a time; read by the checkpoint
service's main loop.  A job that is slow moves it now and then, one that is stuck never does.  Decides nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_count = 0
_out_of_sight = 0  # how many threads are in work that cannot move the count
_lock = threading.Lock()


def move() -> None:
    """One more piece is done.  Any thread; that two at a time may count as one makes no difference."""
    global _count
    _count += 1


def made() -> int | None:
    """The count, or None while some work goes on that nobody can see the inside of."""
    return None if _out_of_sight else _count


@contextlib.contextmanager
def out_of_sight() -> Iterator[None]:
    """For a call of a library or of the system that takes as long as it takes, and says nothing meanwhile."""
    global _out_of_sight
    with _lock:
        _out_of_sight += 1
    try:
        yield
    finally:
        with _lock:
            _out_of_sight -= 1
        move()
