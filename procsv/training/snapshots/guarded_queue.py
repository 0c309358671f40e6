"""Snapshot queue behind its lock, with what the threads of a snapshotter share beside it.

Used by snapshotter.py and its parts.  Whoever holds the lock takes no other one, waits for nothing but its notification, and captures
and copies nothing.  One thread at a time reserves or captures, the one that has set `is_reserving` or `is_capturing`; both at once only
where the backend captures ahead of its memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from procsv.ipc.messaging.message import Message
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_queue import SnapshotQueue

Finish = Callable[[], Message]


class GuardedQueue:
    """Everything here is read and changed by who holds `changed`."""

    def __init__(self, cadence: Cadence) -> None:
        self.changed = threading.Condition()
        self.queue = SnapshotQueue(cadence)
        self.is_capturing = self.is_reserving = False
        self.finishes: dict[int, tuple[Finish, float]] = {}  # what copies each capture, and its stall in seconds

    @contextlib.contextmanager
    def change(self) -> Iterator[SnapshotQueue]:
        """The queue, with the lock held; everybody looks again afterwards."""
        with self.changed:
            yield self.queue
            self.changed.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether somebody has the backend to himself."""
        return self.is_capturing or self.is_reserving
