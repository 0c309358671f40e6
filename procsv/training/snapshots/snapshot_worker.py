"""Reserve snapshot memory and publish captures: the work of a snapshotter's thread.

Also guard the snapshot queue by a lock, and report failures.  snapshotter.py uses all of it.  A
thread that holds the queue's lock takes no other lock, waits only for the lock's condition, and
neither captures nor copies.  A thread sets `is_reserving` before it reserves memory, and
`is_capturing` before it captures, so that no other thread does the same at that time.  A capture
overlaps a reservation only if the backend captures ahead of its memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from procsv.base.errors import UserError, strip_numbers
from procsv.base.journal.entries import GroundLost, GroundRestored, SnapshotFailed, SnapshotsResumed
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.heartbeat import Snapshots
from procsv.ipc.shm.slot_file import NoRoom, SlotsLost
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.backends import SnapshotBackend
from procsv.training.snapshots.boundary import CallTimes
from procsv.training.snapshots.cadence import STAGED_SHARE_MAX, Cadence
from procsv.training.snapshots.snapshot_queue import Record, SnapshotQueue
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.source import CaptureLost, StateSource

STAGED_S_MIN = 1.0  # between two snapshots that are files
SLOT = "slot"  # the journal's name for lost snapshot memory

Finish = Callable[[], Message]


class GuardedQueue:
    """State that threads read and change only while they hold `changed`."""

    def __init__(self, cadence: Cadence) -> None:
        self.changed = threading.Condition()
        self.queue = SnapshotQueue(cadence)
        self.is_capturing = self.is_reserving = False
        self.holders = set[int]()  # the threads that capture or reserve now
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

    @property
    def is_held_here(self) -> bool:
        """Whether this thread captures or reserves now.

        If so, the caller is a signal handler that interrupted that work, and cannot wait for its
        end.
        """
        return threading.get_ident() in self.holders


class FailureReports:
    """Reports snapshot failures of one source.

    The journal gets each new kind of failure once, and the recovery.

    snapshotter.py uses it for captures, SnapshotPublisher for copies.  Any thread; it takes the
    queue's lock.
    """

    def __init__(self, runtime: Runtime, source: StateSource, guarded: GuardedQueue) -> None:
        self._runtime, self._source, self._guarded = runtime, source, guarded
        self._last_failed = ""  # summary of why snapshots fail; "" if they do not

    def report(self, records: list[Record], failure: Exception, reached: SnapshotState) -> None:
        """Records a new kind of failure in the journal.

        Logs every failure, unless a waiting caller gets it.  If the failure only means that the
        source is closed, this stops the cadence instead.
        """
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
        """Records in the journal that snapshots work again, if the last one had failed."""
        if self._last_failed:
            self._last_failed = ""
            self._runtime.connection.note_entry(SnapshotsResumed(step=self._runtime.heartbeat.step))


class SnapshotMemory:
    """Reserves snapshot memory, and replaces memory that another process has removed.

    `backend` is the one to use now: the preferred one, until there is no memory for it.  Any thread
    may call; only the worker checks for removed memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: StateSource,
        backends: tuple[SnapshotBackend, SnapshotBackend],
        cadence: Cadence,
        guarded: GuardedQueue,
    ) -> None:
        """`backends`: the preferred one, and the one to use if there is no memory for it."""
        self._runtime, self._clock, self._source, self._cadence = runtime, runtime.clock, source, cadence
        self.backend, self._fallback = backends
        self._left: SnapshotBackend | None = None  # the backend that ran out of room
        self._guarded, self._changed = guarded, guarded.changed
        self._is_reserved = False  # a reservation has ended, or has led to the fallback; protected by `_changed`

    def reserve(self) -> None:
        """Reserves snapshot memory, or logs once why there is none and falls back.  Any thread."""
        with self._changed:
            if self._guarded.is_held_here:
                return
            self._changed.wait_for(lambda: self._is_reserved or not self._guarded.is_busy)
            if self._is_reserved:
                return
            self._guarded.is_reserving = True
            self._guarded.holders.add(threading.get_ident())
        self._get_memory()

    @property
    def is_awaited(self) -> bool:
        """Whether the next capture waits for the memory.  The caller holds the lock."""
        return self._guarded.is_reserving and not self.backend.captures_ahead()

    def fall_back(self, failure: Exception) -> None:
        """Switches to the other backend for the rest of the run, and logs that once."""
        if self.backend is self._fallback:
            return
        more = f" of {mebibytes} MiB or more" if (mebibytes := -(-self.backend.room_bytes() // 2**20)) else ""
        log.warning(
            "procsv: no snapshots in memory: %s.  The training thread writes them to disk instead, %s; a crash costs "
            "what was trained since the last one.  For snapshots in memory, give /dev/shm room%s: docker run "
            "--shm-size=…, or in Kubernetes a volume there with emptyDir.medium: Memory",
            failure,
            "as often as --snapshot-secs says"
            if self._cadence.fixed_s is not None
            else f"about one a minute, which takes up to {100 * STAGED_SHARE_MAX:g} % of its time",
            more,
        )
        self._left, self.backend = self.backend, self._fallback
        self._cadence.least_s, self._cadence.is_staged = STAGED_S_MIN, True

    def renew_memory(self) -> None:
        """Replaces snapshot memory if it was removed, and has the lost snapshots captured again."""
        loss, seen_s = self.backend.find_loss(), self._clock.monotonic()
        if loss is None:
            self._source.keep_files()
        with self._changed:
            if loss is None:
                self._guarded.queue.memory_checked(seen_s, is_lost=False)
                return
            self._changed.wait_for(lambda: not self._guarded.is_busy)
            if self._guarded.finishes:
                return  # a capture still has to be copied into its slot; this is called again afterwards
            self._guarded.is_reserving = True
        log.warning("procsv: something removed %s during the run; snapshots go into new shared memory", loss.path)
        if loss.is_alone:
            self._runtime.connection.note_entry(GroundLost(what=SLOT, path=str(loss.path)))
        self._get_memory(is_lost=True)
        if loss.is_alone:
            seconds = round(self._clock.monotonic() - seen_s, 3)
            self._runtime.connection.note_entry(GroundRestored(what=SLOT, path=str(loss.path), seconds=seconds))

    def close(self) -> None:
        """Releases the slots; the snapshots in them stay for other processes."""
        self.backend.close()
        if self._left is not None:
            self._left.close()

    def _get_memory(self, is_lost: bool = False) -> None:
        """Reserves memory for a caller that has set `is_reserving`, and clears that flag.

        `is_lost`: the previous memory was removed.
        """
        try:
            self.backend.reserve()
        except (NoRoom, OSError, UserError) as failure:
            self.fall_back(failure)
        finally:
            self._source.keep_files()  # before any capture that needs them
            with self._guarded.change() as queue:
                self._guarded.is_reserving, self._is_reserved = False, True
                self._guarded.holders.discard(threading.get_ident())
                queue.memory_checked(self._clock.monotonic(), is_lost)


class SnapshotPublisher:
    """Copies captures in order and tells the checkpoint service.  Only on the worker's thread."""

    def __init__(
        self,
        runtime: Runtime,
        times: CallTimes,
        cadence: Cadence,
        guarded: GuardedQueue,
        memory: SnapshotMemory,
        failures: FailureReports,
    ) -> None:
        """`times`: the durations of the training thread's calls."""
        self._runtime, self._clock, self._times, self._cadence = runtime, runtime.clock, times, cadence
        self._guarded, self._memory, self._failures = guarded, memory, failures
        self.on_published: Callable[[Snapshots], None] | None = None  # called after each snapshot

    def publish_next(self) -> None:
        """Copies the oldest capture and publishes it."""
        with self._guarded.changed:
            sequence = self._guarded.queue.next_copy()
            finish, stall_s = self._guarded.finishes.pop(sequence)
            records = self._guarded.queue.of(sequence)
        begun_s = self._clock.monotonic()
        try:
            message = finish()
        except NoRoom as no_room:  # a table, for example, has outgrown the memory
            self._memory.fall_back(no_room)
            with self._guarded.change() as queue:
                queue.outgrown(sequence, self._clock.monotonic())
            return
        except (SlotsLost, CaptureLost):
            with self._guarded.change() as queue:
                queue.snapshot_lost(sequence, self._clock.monotonic())
            return
        # A failed snapshot must not end training: it is reported.
        except Exception as failure:  # noqa: BLE001
            with self._guarded.change() as queue:
                queue.fail(records, failure, self._clock.monotonic())
            self._failures.report(records, failure, SnapshotState.CAPTURED)
            return
        self._publish(message, sequence, begun_s, stall_s)
        self._failures.report_success()
        try:
            if self.on_published is not None:
                self.on_published(self._cadence.told())
        # The snapshot is whole; the session may be gone.
        except Exception as failure:  # noqa: BLE001
            self._failures.report([], failure, SnapshotState.CAPTURED)

    def _publish(self, message: Message, sequence: int, begun_s: float, stall_s: float) -> None:
        with self._guarded.change() as queue:
            queue.copied(sequence)
            self._runtime.connection.tell_checkpoint(message)  # under the lock, so that the answer finds it published
            stopped_s = self._clock.monotonic()
            self._cadence.learn(stall_s, stopped_s - begun_s, self._times.take_lost(), self._times.median_s)
            self._times.copied()
            self._runtime.heartbeat.show_snapshots(self._cadence.told())
            queue.published(sequence, stopped_s)
