"""Reports of snapshots that go wrong: each change of what is wrong once, and that they can be taken again.

Used by snapshotter.py for captures, by snapshot_publisher.py for copies.  Any thread; takes the snapshotter's lock.
"""

from __future__ import annotations

from procsv.base.errors import gist
from procsv.base.journal.entries import SnapshotFailed, SnapshotsResumed
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.guarded_queue import GuardedQueue
from procsv.training.snapshots.snapshot_queue import Record
from procsv.training.snapshots.snapshot_state import State
from procsv.training.snapshots.source import StateSource


class FailureReports:
    """Of one source."""

    def __init__(self, runtime: Runtime, source: StateSource, guarded: GuardedQueue) -> None:
        self._runtime, self._source, self._guarded = runtime, source, guarded
        self._last_failed = ""  # the gist of why no snapshot can be taken; "" if they can

    def report(self, records: list[Record], failure: Exception, reached: State) -> None:
        """Logs `failure`, unless a caller waits who hears of it, or it only says that the source is closed."""
        if self._source.is_closed(failure):
            with self._guarded.change() as queue:
                queue.stop_cadence()  # there is nothing left to capture
            return
        if gist(str(failure)) != self._last_failed:  # it is tried again and again
            self._last_failed = gist(str(failure))
            self._runtime.note(SnapshotFailed(step=self._runtime.step, error=str(failure), is_last=False))
        if all(record.request.until <= reached for record in records):
            log.error("procsv: a snapshot failed, training goes on: %s", failure)

    def report_success(self) -> None:
        """A snapshot was published."""
        if self._last_failed:
            self._last_failed = ""
            self._runtime.note(SnapshotsResumed(step=self._runtime.step))
