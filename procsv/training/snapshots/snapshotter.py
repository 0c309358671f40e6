"""The snapshots of one source of state: one queue, one worker, one lock.

Used by a TrainingRun.  Requests go into the queue (snapshot_queue.py), which decides.  A capture is made at the step
boundary by the training thread; if that does not come by in time, by the worker, which holds the boundary's lock then or
captures beside a call that changes nothing.  The worker alone copies and publishes, in the order
of capture, and looks after the memory (snapshot_worker.py).

Lock order: `Boundary.lock`, then that of the queue (guarded_queue.py); the backend's own lock comes last, and is held for
no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from procsv.base.identity import CHECKPOINT
from procsv.base.run.manifest import Reason
from procsv.base.system.process_state import name_own_thread
from procsv.ipc.messaging.checkpoint_messages import Durable, SaveFailed
from procsv.ipc.messaging.watchdog_messages import CopyKept
from procsv.ipc.shm.heartbeat import Snapshots
from procsv.training.runtime.context import Runtime
from procsv.training.runtime.log import log
from procsv.training.snapshots.backends import SnapshotBackend, always
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.guarded_queue import FailureReports, Finish, GuardedQueue
from procsv.training.snapshots.snapshot_queue import AGAIN_S, Record, SnapshotRequest, Want, Work
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.snapshot_worker import SnapshotMemory, SnapshotPublisher
from procsv.training.snapshots.source import StateSource

LOST_S = 0.5  # how soon it is seen that nobody will save any more
WAIT_S_MAX = 60.0  # how long a caller waits for a slot, and before that for a pinned snapshot
NO_SLOT = f"no snapshot slot became free in {WAIT_S_MAX:.0f} s: is the disk very slow?"


class Snapshotter:
    """Takes the snapshots of one source and sees them through to the checkpoint service."""

    def __init__(
        self,
        runtime: Runtime,
        boundary: Boundary,
        source: StateSource,
        backends: tuple[SnapshotBackend, SnapshotBackend],
        cadence: Cadence,
    ) -> None:
        """`backends`: the one to use, and the one for when there is no memory for the first."""
        self._runtime, self._boundary, self._source = runtime, boundary, source
        self._clock, self._cadence = runtime.clock, cadence
        self._guarded = GuardedQueue(cadence)
        self.changed, self.queue, self._change = self._guarded.changed, self._guarded.queue, self._guarded.change
        self._memory = SnapshotMemory(runtime, source, backends, cadence, self._guarded)
        self._failures = FailureReports(runtime, source, self._guarded)
        self._publisher = SnapshotPublisher(
            runtime, boundary.times, cadence, self._guarded, self._memory, self._failures
        )
        self._runs_seen = -1  # the worker's: calls that had ended when it last looked
        self._worker = threading.Thread(target=self._work, name="procsv-snapshots", daemon=True)
        self.last_failure: SaveFailed | None = None

    # -- beginning and end -----------------------------------------------------------------------------------
    def start_worker(self) -> None:
        """On the training thread, before the first step."""
        self._memory.backend.warm_up()
        self._worker.start()

    def start_cadence(self, on_published: Callable[[Snapshots], None] | None = None) -> None:
        """From here on there are snapshots by the cadence; `on_published` is called after each, on the worker."""
        with self._change() as queue:
            self._publisher.on_published = on_published
            queue.start_cadence(self._clock.monotonic())
        self._runtime.heartbeat.show_snapshots(self._cadence.told())

    def stop_cadence(self) -> None:
        with self._change() as queue:
            queue.stop_cadence()

    def close(self) -> None:
        """Publishes what is captured and lets go of source and slots; what lies in the slots stays for whoever needs it."""
        with self._change() as queue:
            queue.stop_captures(RuntimeError("the session is closed"), SnapshotState.CAPTURED)
        if self._worker.ident is not None:
            self._worker.join()
        self._memory.close()

    def reserve_early(self) -> None:
        """Gets the memory now if a capture needs it; else the worker does, while training goes on.  On the training thread."""
        if not self._memory.backend.captures_ahead():
            self._memory.reserve()

    # -- requests --------------------------------------------------------------------------------------------
    def request(self, request: SnapshotRequest) -> Record:
        """Queues a snapshot.  Within a call of the training thread it is captured at its end."""
        with self._change() as queue:
            record = queue.add_request(request, self._clock.monotonic())
        self._boundary.due = True
        return record

    def request_stop_save(self, want: Reason) -> None:
        """The program is to end: its last state is saved, if need be before it comes to that by itself."""
        with self._change() as queue:
            if not queue.is_stopping:
                queue.is_stopping, self._runs_seen = True, self._boundary.runs
                queue.add_request(SnapshotRequest(want, reuses=True, for_stop=True), self._clock.monotonic())

    def take_snapshot(self, want: Want, reuses: bool = False) -> Record:
        """A published snapshot of this moment, between two calls of the training thread.  Any thread but the worker.

        `reuses`: one that was asked for since the last call ended will do.  TimeoutError if no slot becomes free.
        """
        self._memory.reserve()
        return self.flush_request(self.request(SnapshotRequest(want, until=SnapshotState.PUBLISHED, reuses=reuses)))

    def capture_async(self, want: Want) -> Record:
        """A pinned snapshot of this moment, captured now and copied by the worker; its `failure` says if there is none."""
        self.reserve_early()
        return self._flush_pinned(self.request(SnapshotRequest(want, pinned=True, until=SnapshotState.CAPTURED)))

    def flush_request(self, record: Record) -> Record:
        """Captures `record` now and waits for it as far as its `until`; raises what kept it from coming so far.

        Waits for the pinned snapshot before it, but not when the run is to end: then the last state counts.
        """
        deadline_s, is_urgent = self._clock.monotonic() + WAIT_S_MAX, False
        while record.state is SnapshotState.REQUESTED:
            with self._boundary.hold_thread():
                self._try_capture(record, is_urgent or self._is_lost())
            with self.changed:
                now_s = self._clock.monotonic()
                if record.state is SnapshotState.REQUESTED and now_s > deadline_s:
                    if is_urgent or self.queue.is_free(record):
                        self.queue.fail([record], TimeoutError(NO_SLOT), now_s)
                    deadline_s, is_urgent = now_s + WAIT_S_MAX, True
                elif record.state is SnapshotState.REQUESTED:
                    self.changed.wait(AGAIN_S)
            self._wait_for(lambda: record.state is SnapshotState.REQUESTED or self._has_come_far(record), WAIT_S_MAX)
        if record.failure is not None:
            raise record.failure
        return record

    def _has_come_far(self, record: Record) -> bool:
        """Whether its caller need not wait any more.  When the run is to end, only the end of the session waits for a disk."""
        until = record.request.until
        return record.state >= (
            SnapshotState.CAPTURED if until is SnapshotState.DURABLE and self.queue.is_stopping else until
        )

    def visit(self) -> None:
        """At the boundary, its lock held: captures what is due; waits for a slot only where a pinned one needs it."""
        with self.changed:
            pinned = self.queue.next_pinned()
        if pinned is None:
            self._try_capture()
        else:
            self._flush_pinned(pinned)

    def _flush_pinned(self, record: Record) -> Record:
        with self._runtime.heartbeat.saving():  # it may wait for the disk
            try:
                self.flush_request(record)
            except Exception as failure:  # noqa: BLE001  a snapshot that goes wrong is not the training's fault
                log.error("procsv: no checkpoint of this step, training goes on: %s", failure)
        return record

    # -- news ------------------------------------------------------------------------------------------------
    @property
    def asked(self) -> Record | None:
        """The newest snapshot that somebody asked for."""
        return self.queue.asked

    @property
    def owes(self) -> bool:
        """Whether a save that was asked for has not been captured yet."""
        with self.changed:
            return self.queue.owes

    def wait_durable(self, record: Record, timeout_s: float, is_given_up: Callable[[], bool] = lambda: False) -> bool:
        """Whether `record`, or a newer one, is a verified checkpoint within `timeout_s`, whatever fails on the way.

        `is_given_up` is asked twice a second whether to wait no longer.
        """

        def is_over() -> bool:
            return record.failure is not None or record.state is SnapshotState.DURABLE or is_given_up()

        return self._wait_for(is_over, timeout_s, record)

    def wait_settled(self, record: Record, timeout_s: float) -> bool:
        """Whether `record` is a verified checkpoint; False as soon as a try to save it has failed, too."""
        return self._wait_for(lambda: record.state >= SnapshotState.DURABLE, timeout_s, record)

    def _wait_for(self, is_over: Callable[[], bool], timeout_s: float, record: Record | None = None) -> bool:
        """Until `is_over`, the timeout, or the loss of the checkpoint service for good; whether `record` is durable."""
        deadline_s = self._clock.monotonic() + timeout_s
        with self.changed:
            while not is_over() and not self._is_lost() and (left_s := deadline_s - self._clock.monotonic()) > 0:
                self.changed.wait(min(LOST_S, left_s))
            return record is not None and record.state is SnapshotState.DURABLE

    def _is_lost(self) -> bool:
        return bool(self._runtime.connection.link.why_lost(CHECKPOINT))

    def on_durable(self, news: Durable) -> None:
        with self._change() as queue:
            queue.saved(news.sequence)
            self.last_failure = None

    def on_failed(self, news: SaveFailed) -> None:
        with self._change() as queue:
            queue.save_failed(news.sequence)
            queue.look_soon(self._clock.monotonic())
            self.last_failure = news

    def on_copy_kept(self, news: CopyKept) -> None:
        with self._change() as queue:
            queue.copy_kept(news.sequence, self._clock.monotonic())

    # -- captures --------------------------------------------------------------------------------------------
    def _try_capture(
        self, first: Record | None = None, is_urgent: bool = False, is_whole: Callable[[], bool] = always
    ) -> None:
        """Captures what is due, the training thread being between two calls or in one that changes nothing.

        `is_whole` is asked when it has been captured; what may be torn is thrown away.
        """
        with self.changed:
            calls = self._boundary.runs + self._boundary.elsewhere + self._source.count_calls()
            now_s = self._clock.monotonic()
            waits = self._guarded.is_capturing or self._memory.is_awaited
            batch = [] if waits else self.queue.choose_batch(now_s, calls, first, is_urgent)
            if not batch:
                return
            self._guarded.is_capturing = True
        want: Want = next((record.request.want for record in reversed(batch) if record.request.want), "")
        if any(record.request.for_stop for record in batch):
            want = self._runtime.stops.reason or want  # a signal comes before the message that says what it is about
        finish: Finish | None = None
        failure: Exception | None = None
        sequence = self._runtime.numbers.newest + 1
        try:
            finish = self._memory.backend.capture(sequence, want, is_whole)
        except Exception as error:  # noqa: BLE001  a snapshot that goes wrong is not the training's fault: reported below
            failure = error
        finally:
            stopped_s = self._clock.monotonic()
            with self._change() as queue:
                self._guarded.is_capturing = False
                if finish is not None:
                    self._boundary.times.captured()
                    self._runtime.numbers.use_number(sequence)
                    self._guarded.finishes[sequence] = finish, stopped_s - now_s
                    queue.captured(batch, sequence, calls, now_s)
                elif failure is not None:
                    queue.fail(batch, failure, stopped_s)
                else:
                    queue.put_off(batch, stopped_s)
        if failure is not None:
            self._failures.report(batch, failure, SnapshotState.REQUESTED)

    # -- the worker ------------------------------------------------------------------------------------------
    def _work(self) -> None:
        name_own_thread()  # what it does is not the program's doing
        try:
            self._memory.reserve()
            while (work := self._next_work()) is not Work.END:
                if work is Work.COPY:
                    self._publisher.publish_next()
                elif work is Work.LOOK:
                    self._memory.renew_memory()
                elif work is Work.PREPARE:
                    self._memory.backend.prepare_slot()
                    with self._change() as queue:
                        queue.add_spaced(self._clock.monotonic())
                elif work is Work.CAPTURE:
                    self._capture_by_worker()
        except BaseException as failure:  # whoever waits for the worker hears of it
            with self._change() as queue:
                queue.stop_captures(RuntimeError(f"the snapshot worker has ended: {failure}"), SnapshotState.PUBLISHED)
            raise

    def _next_work(self) -> Work:
        """What to do next; sleeps until there is something."""
        with self.changed:
            while True:
                now_s = self._clock.monotonic()
                if self.queue.is_due(now_s):
                    self._boundary.due = True
                work = self.queue.next_work(now_s)
                if work is not Work.SLEEP:
                    return work
                wakes_s = self.queue.wakes_s(now_s)
                self.changed.wait(None if wakes_s is None else max(0.0, wakes_s - now_s))

    def _capture_by_worker(self) -> None:
        """The training thread has not come by: it is between two calls, or in a long one, or there is none."""
        boundary, runs = self._boundary, self._boundary.runs
        if boundary.lock.acquire(blocking=False):
            try:
                if not boundary.is_torn:
                    self._try_capture()
            finally:
                boundary.lock.release()
        elif self.queue.is_stopping and runs == self._runs_seen and not self._source.may_change():
            self._try_capture(is_whole=lambda: boundary.runs == runs and boundary.lock.locked())
        self._runs_seen = runs
        with self.changed:
            self.queue.missed(self._clock.monotonic())
