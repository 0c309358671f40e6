"""Count the progress of this process's jobs, for its heartbeat.

disk.py advances the count, and so does code that reads or verifies large data a piece at a time.
The checkpoint service's main loop reads it.  A slow job advances it now and then; a stuck job never
does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_count = 0
_untracked = 0  # threads in work that cannot advance the count
_lock = threading.Lock()


def advance() -> None:
    """Counts one more piece.

    Any thread may call it.  Two simultaneous calls may count as one, which is harmless.
    """
    global _count
    _count += 1


def value() -> int | None:
    """Returns the count, or None during work that cannot advance it."""
    return None if _untracked else _count


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Marks a call of a library or of the system that cannot advance the count.

    Such a call may take any time.
    """
    global _untracked
    with _lock:
        _untracked += 1
    try:
        yield
    finally:
        with _lock:
            _untracked -= 1
        advance()
