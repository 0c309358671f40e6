"""The snapshot queue behind its lock, and the snapshotter threads' other shared state.

Also reports failures.  snapshotter.py and its parts use it.  A thread that holds the lock takes no
other lock, waits only for the lock's condition, and neither captures nor copies.  Only the thread
that has set `is_reserving` or `is_capturing` reserves or captures.  Both happen at once only if the
backend captures ahead of its memory.
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
    """State that threads read and change only while they hold `changed`."""

    def __init__(self, cadence: Cadence) -> None:
        self.changed = threading.Condition()
        self.queue = SnapshotQueue(cadence)
        self.is_capturing = self.is_reserving = False
        self.finishes: dict[int, tuple[Finish, float]] = {}  # how to copy each capture, and its stall in seconds

    @contextlib.contextmanager
    def change(self) -> Iterator[SnapshotQueue]:
        """Yields the queue with the lock held, then wakes all waiting threads."""
        with self.changed:
            yield self.queue
            self.changed.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether a thread uses the backend exclusively."""
        return self.is_capturing or self.is_reserving


class FailureReports:
    """Reports each new kind of snapshot failure of one source once, and the recovery.

    snapshotter.py uses it for captures, snapshot_worker.py for copies.  Any thread; it takes the
    queue's lock.
    """

    def __init__(self, runtime: Runtime, source: StateSource, guarded: GuardedQueue) -> None:
        self._runtime, self._source, self._guarded = runtime, source, guarded
        self._last_failed = ""  # summary of why snapshots fail; "" if they do not

    def report(self, records: list[Record], failure: Exception, reached: SnapshotState) -> None:
        """Logs `failure`, unless a waiting caller gets it or the source is merely closed."""
        if self._source.is_closed(failure):
            with self._guarded.change() as queue:
                queue.stop_cadence()  # nothing is left to capture
            return
        if strip_numbers(str(failure)) != self._last_failed:  # every retry fails alike
            self._last_failed = strip_numbers(str(failure))
            self._runtime.connection.note_entry(
                SnapshotFailed(step=self._runtime.heartbeat.step, error=str(failure), is_last=False)
            )
        if all(record.request.until <= reached for record in records):
            log.error("procsv: a snapshot failed, training goes on: %s", failure)

    def report_success(self) -> None:
        """Records that a snapshot was published."""
        if self._last_failed:
            self._last_failed = ""
            self._runtime.connection.note_entry(SnapshotsResumed(step=self._runtime.heartbeat.step))
