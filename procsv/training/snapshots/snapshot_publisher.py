"""Publisher of snapshots: copies what was captured, in that order, and tells the checkpoint service.

Used by snapshotter.py.  On the worker's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.heartbeat import Snapshots
from procsv.ipc.shm.slot_file import NoRoom, SlotsLost
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots.boundary import CallTimes
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.guarded_queue import FailureReports, GuardedQueue
from procsv.training.snapshots.snapshot_memory import SnapshotMemory
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.source import CaptureLost


class SnapshotPublisher:
    """`times`: of the steps that a snapshot stalls and slows."""

    def __init__(
        self,
        runtime: Runtime,
        times: CallTimes,
        cadence: Cadence,
        guarded: GuardedQueue,
        memory: SnapshotMemory,
        failures: FailureReports,
    ) -> None:
        self._runtime, self._clock, self._times, self._cadence = runtime, runtime.clock, times, cadence
        self._guarded, self._memory, self._failures = guarded, memory, failures
        self.on_published: Callable[[Snapshots], None] | None = None  # called after each

    def publish_next(self) -> None:
        """Copies the oldest capture and publishes it."""
        with self._guarded.changed:
            sequence = self._guarded.queue.next_copy()
            finish, stall_s = self._guarded.finishes.pop(sequence)
            records = self._guarded.queue.of(sequence)
        begun_s = self._clock.monotonic()
        try:
            message = finish()
        except NoRoom as no_room:  # it has grown (a table, say) beyond what there is
            self._memory.fall_back(no_room)
            with self._guarded.change() as queue:
                queue.outgrown(sequence, self._clock.monotonic())
            return
        except (SlotsLost, CaptureLost):
            with self._guarded.change() as queue:
                queue.snapshot_lost(sequence, self._clock.monotonic())
            return
        except Exception as failure:  # noqa: BLE001  a snapshot that goes wrong is not the training's fault: reported
            with self._guarded.change() as queue:
                queue.fail(records, failure, self._clock.monotonic())
            self._failures.report(records, failure, SnapshotState.CAPTURED)
            return
        self._publish(message, sequence, begun_s, stall_s)
        self._failures.report_success()
        try:
            if self.on_published is not None:
                self.on_published(self._cadence.told())
        except Exception as failure:  # noqa: BLE001  the snapshot is whole: it is the session that may be gone
            self._failures.report([], failure, SnapshotState.CAPTURED)

    def _publish(self, message: Message, sequence: int, begun_s: float, stall_s: float) -> None:
        with self._guarded.change() as queue:
            queue.copied(sequence)
            self._runtime.connection.tell_checkpoint(message)  # under the lock: its answer finds the snapshot published
            stopped_s = self._clock.monotonic()
            self._cadence.learn(stall_s, stopped_s - begun_s, self._times.take_lost(), self._times.median_s)
            self._times.copied()
            self._runtime.heartbeat.show_snapshots(self._cadence.told())
            queue.published(sequence, stopped_s)
