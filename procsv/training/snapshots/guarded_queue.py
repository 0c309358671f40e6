"""Snapshot queue behind its lock, with what the threads of a snapshotter share beside it: reports of what goes wrong, too.

Used by snapshotter.py and its parts.  Whoever holds the lock takes no other one, waits for nothing but its notification, and captures
and copies nothing.  One thread at a time reserves or captures, the one that has set `is_reserving` or `is_capturing`; both at once only
where the backend captures ahead of its memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from procsv.base.errors import strip_numbers
from procsv.base.journal.entries import SnapshotFailed, SnapshotsResumed
from procsv.ipc.messaging.message import Message
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_queue import Record, SnapshotQueue
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.source import StateSource

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


class FailureReports:
    """Reports of the snapshots of one source that go wrong: each change of what is wrong once, and that they can be taken again.

    Used by snapshotter.py for captures, by snapshot_worker.py for copies.  Any thread; takes the queue's lock.
    """

    def __init__(self, runtime: Runtime, source: StateSource, guarded: GuardedQueue) -> None:
        self._runtime, self._source, self._guarded = runtime, source, guarded
        self._last_failed = ""  # the gist of why no snapshot can be taken; "" if they can

    def report(self, records: list[Record], failure: Exception, reached: SnapshotState) -> None:
        """Logs `failure`, unless a caller waits who hears of it, or it only says that the source is closed."""
        if self._source.is_closed(failure):
            with self._guarded.change() as queue:
                queue.stop_cadence()  # there is nothing left to capture
            return
        if strip_numbers(str(failure)) != self._last_failed:  # it is tried again and again
            self._last_failed = strip_numbers(str(failure))
            self._runtime.connection.note_entry(
                SnapshotFailed(step=self._runtime.heartbeat.step, error=str(failure), is_last=False)
            )
        if all(record.request.until <= reached for record in records):
            log.error("procsv: a snapshot failed, training goes on: %s", failure)

    def report_success(self) -> None:
        """A snapshot was published."""
        if self._last_failed:
            self._last_failed = ""
            self._runtime.connection.note_entry(SnapshotsResumed(step=self._runtime.heartbeat.step))
