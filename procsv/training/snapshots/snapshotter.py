"""Take the snapshots of one source of state, and follow them to the checkpoint service.

Each TrainingRun has a Snapshotter.  Requests for snapshots go into its queue (snapshot_queue.py),
which decides what is captured when.  A *pinned* snapshot must itself become a checkpoint.  Until it
is durable or has failed, nothing newer is captured, with three exceptions: during a stop, after a
wait of WAIT_S_MAX, and if the checkpoint service is lost.

The training thread captures at the step boundary.  The Snapshotter also has a thread of its own,
the *worker*.  If the training thread does not reach the boundary in time, the worker captures.  It
may do so while it holds the boundary's lock.  During a stop, it may also do so while the training
thread is in a call that cannot change the state.  Only the worker copies and publishes captures, in
their order.  Only the worker replaces snapshot memory that another process has removed
(snapshot_worker.py).

A thread takes locks in this order: `Boundary.lock`, the queue's lock (snapshot_worker.py), the
backend's lock (backends.py).  A thread that holds the backend's lock takes no other.
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
from procsv.training.snapshots.snapshot_queue import AGAIN_S, Record, SnapshotRequest, Want, Work
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.snapshot_worker import (
    FailureReports,
    Finish,
    GuardedQueue,
    SnapshotMemory,
    SnapshotPublisher,
)
from procsv.training.snapshots.source import StateSource

LOST_S = 0.5  # how soon a waiting thread notices that the checkpoint service is *lost*: it will not be restarted
WAIT_S_MAX = 60.0  # how long a caller waits for an earlier pinned snapshot, then for a slot, then for the worker
NO_SLOT = f"no snapshot slot became free in {WAIT_S_MAX:.0f} s: is the disk very slow?"
WITHIN = "it was requested while another snapshot was being taken, for example by a signal handler"


class Snapshotter:
    """Takes the snapshots of one source and follows them to the checkpoint service."""

    def __init__(
        self,
        runtime: Runtime,
        boundary: Boundary,
        source: StateSource,
        backends: tuple[SnapshotBackend, SnapshotBackend],
        cadence: Cadence,
    ) -> None:
        """`backends`: the preferred one, and the one to use if there is no memory for it."""
        self._runtime, self._boundary, self._source = runtime, boundary, source
        self._clock, self._cadence = runtime.clock, cadence
        self._guarded = GuardedQueue(cadence)
        self.changed, self.queue, self._change = self._guarded.changed, self._guarded.queue, self._guarded.change
        self._memory = SnapshotMemory(runtime, source, backends, cadence, self._guarded)
        self._failures = FailureReports(runtime, source, self._guarded)
        self._publisher = SnapshotPublisher(
            runtime, boundary.times, cadence, self._guarded, self._memory, self._failures
        )
        # How many calls had finished when the worker last tried to capture, or when the stop was requested, whichever
        # was later.  If no call has finished since, the same call may still be running.
        self._runs_seen = -1
        self._worker = threading.Thread(target=self._work, name="procsv-snapshots", daemon=True)
        self.last_failure: SaveFailed | None = None

    # -- start and end -----------------------------------------------------------------------------
    def start_worker(self) -> None:
        """Starts the worker; call it on the training thread before the first step."""
        self._memory.backend.warm_up()
        self._worker.start()

    def start_cadence(self, on_published: Callable[[Snapshots], None] | None = None) -> None:
        """Starts the cadence's snapshots.  The worker calls `on_published` after each of them."""
        with self._change() as queue:
            self._publisher.on_published = on_published
            queue.start_cadence(self._clock.monotonic())
        self._runtime.heartbeat.show_snapshots(self._cadence.told())

    def stop_cadence(self) -> None:
        with self._change() as queue:
            queue.stop_cadence()

    def close(self) -> None:
        """Publishes the captures that are left, then releases the slots.

        The contents of the slots stay for other processes.
        """
        with self._change() as queue:
            queue.stop_captures(RuntimeError("the session is closed"), SnapshotState.CAPTURED)
        if self._worker.ident is not None:
            self._worker.join()
        self._memory.close()

    def reserve_early(self) -> None:
        """Reserves the memory now if the next capture cannot run without it.

        Otherwise the worker reserves it while training continues.  Call this on the training
        thread.
        """
        if not self._memory.backend.captures_ahead():
            self._memory.reserve()

    # -- requests ----------------------------------------------------------------------------------
    def request(self, request: SnapshotRequest) -> Record:
        """Queues a request.  If the training thread is in a call, the capture follows that call."""
        with self._change() as queue:
            record = queue.add_request(request, self._clock.monotonic())
        self._boundary.due = True
        return record

    def request_stop_save(self, reason: Reason) -> None:
        """Requests the last state of a program that was asked to end.

        Most programs then end by themselves, and save a later state.  If this one has not ended
        within STOP_PATIENCE_S (snapshot_queue.py), its present state is captured.
        """
        with self._change() as queue:
            if not queue.is_stopping:
                queue.is_stopping, self._runs_seen = True, self._boundary.runs
                queue.add_request(SnapshotRequest(reason, reuses=True, for_stop=True), self._clock.monotonic())

    def take_snapshot(self, want: Want, reuses: bool = False) -> Record:
        """Takes a snapshot between two calls of the training thread, and waits for its publication.

        `want`: see SnapshotRequest.  With `reuses`, an earlier requested snapshot will do if no
        call has ended since it was captured.  Any thread but the worker may call this.  Raises
        TimeoutError if no slot becomes free.
        """
        self._memory.reserve()
        return self.flush_request(self.request(SnapshotRequest(want, until=SnapshotState.PUBLISHED, reuses=reuses)))

    def capture_async(self, want: Want) -> Record:
        """Captures a pinned snapshot now.  The worker copies and publishes it later.

        `want`: see SnapshotRequest.  If the capture fails, the record's `failure` says why.
        """
        self.reserve_early()
        return self._flush_pinned(self.request(SnapshotRequest(want, pinned=True, until=SnapshotState.CAPTURED)))

    def flush_request(self, record: Record) -> Record:
        """Captures `record` now, and waits up to WAIT_S_MAX until it reaches its `until` state.

        If an earlier pinned snapshot blocks `record`, this first waits up to WAIT_S_MAX for that
        snapshot, and then captures `record` regardless.  If the capture fails, or no slot becomes
        free, this raises the error.
        """
        if self._guarded.is_held_here and record.state is SnapshotState.REQUESTED:
            with self._change() as queue:
                queue.fail([record], RuntimeError(WITHIN), self._clock.monotonic())
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
            self._wait_for(
                lambda: record.state is SnapshotState.REQUESTED or self._has_reached_goal(record), WAIT_S_MAX
            )
        if record.failure is not None:
            raise record.failure
        return record

    def _has_reached_goal(self, record: Record) -> bool:
        """Whether `record` has reached the state that its caller waits for, or has failed.

        While the program is stopping, a caller that wants a checkpoint waits only for the capture.
        Only the end of the session then waits for the disk.
        """
        until = record.request.until
        return record.state >= (  # FAILED is the highest state
            SnapshotState.CAPTURED if until is SnapshotState.DURABLE and self.queue.is_stopping else until
        )

    def capture_due(self) -> None:
        """Captures what is due.  Called on the training thread at the boundary, with its lock held.

        If a pinned snapshot is requested, this waits for a slot.  Otherwise it does not wait.
        """
        with self.changed:
            pinned = self.queue.next_pinned()
        if pinned is None:
            self._try_capture()
        else:
            self._flush_pinned(pinned)

    def _flush_pinned(self, record: Record) -> Record:
        with self._runtime.heartbeat.saving():  # may wait for the disk
            try:
                self.flush_request(record)
            except Exception as failure:  # noqa: BLE001  a failed snapshot must not end training
                log.error("procsv: this step could not be saved; training continues: %s", failure)
        return record

    # -- events ------------------------------------------------------------------------------------
    @property
    def asked(self) -> Record | None:
        """The newest captured snapshot that the program, a stop or the session's end has requested.

        None if there is none; the snapshots of the cadence do not count.
        """
        return self.queue.asked

    @property
    def owes(self) -> bool:
        """Whether a requested save has not been captured yet."""
        with self.changed:
            return self.queue.owes

    def wait_durable(self, record: Record, timeout_s: float, is_given_up: Callable[[], bool] = lambda: False) -> bool:
        """Waits until `record` or a newer snapshot is a verified checkpoint; returns whether it is.

        A failed attempt to save it does not end the wait, because the service tries again.  Three
        things end the wait before the timeout: the snapshot cannot reach the service, the service
        is lost, or `is_given_up` returns True.  This checks `is_given_up` at least every LOST_S.
        """

        def is_over() -> bool:
            return record.failure is not None or record.state is SnapshotState.DURABLE or is_given_up()

        return self._wait_for(is_over, timeout_s, record)

    def wait_settled(self, record: Record, timeout_s: float) -> bool:
        """Waits until `record` or a newer snapshot is a verified checkpoint, or a save has failed.

        Returns whether it is a verified checkpoint.
        """
        is_settled = (SnapshotState.DURABLE, SnapshotState.FAILED)
        return self._wait_for(lambda: record.state in is_settled, timeout_s, record)

    def _wait_for(self, is_over: Callable[[], bool], timeout_s: float, record: Record | None = None) -> bool:
        """Waits until `is_over` returns True, the time is over, or the checkpoint service is lost.

        Returns whether `record` is durable.
        """
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
            queue.check_memory_soon(self._clock.monotonic())
            self.last_failure = news

    def on_copy_kept(self, news: CopyKept) -> None:
        with self._change() as queue:
            queue.copy_kept(news.sequence, self._clock.monotonic())

    # -- captures ----------------------------------------------------------------------------------
    def _try_capture(
        self, first: Record | None = None, is_urgent: bool = False, is_whole: Callable[[], bool] = always
    ) -> None:
        """Captures what is due.

        The caller makes sure that the training thread is between two calls, or in a call that
        cannot change the state.  `first` and `is_urgent`: see SnapshotQueue.choose_batch.
        `is_whole` is called after the capture.  If it returns False, the captured state may be
        torn, so it is dropped and captured again later.
        """
        with self.changed:
            calls = self._boundary.runs + self._boundary.elsewhere + self._source.count_calls()
            now_s = self._clock.monotonic()
            waits = self._guarded.is_capturing or self._memory.is_awaited
            batch = [] if waits else self.queue.choose_batch(now_s, calls, first, is_urgent)
            if not batch:
                return
            self._guarded.is_capturing = True
            self._guarded.holders.add(threading.get_ident())
        want: Want = next((record.request.want for record in reversed(batch) if record.request.want), "")
        if any(record.request.for_stop for record in batch):
            # The signal that made this request came before the message that names the reason.  Use the reason if it is
            # known by now.
            want = self._runtime.stops.reason or want
        finish: Finish | None = None
        failure: Exception | None = None
        sequence = self._runtime.numbers.newest + 1
        try:
            finish = self._memory.backend.capture(sequence, want, is_whole)
        except Exception as error:  # noqa: BLE001  a failed snapshot must not end training: reported below
            failure = error
        finally:
            stopped_s = self._clock.monotonic()
            with self._change() as queue:
                self._guarded.is_capturing = False
                self._guarded.holders.discard(threading.get_ident())
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

    # -- the worker --------------------------------------------------------------------------------
    def _work(self) -> None:
        name_own_thread()  # to distinguish it from the program's own threads
        try:
            self._memory.reserve()
            while (work := self._next_work()) is not Work.END:
                if work is Work.COPY:
                    self._publisher.publish_next()
                elif work is Work.CHECK_MEMORY:
                    self._memory.renew_memory()
                elif work is Work.PREPARE:
                    self._memory.backend.prepare_slot()
                    with self._change() as queue:
                        queue.add_cadence_request(self._clock.monotonic())
                elif work is Work.CAPTURE:
                    self._capture_by_worker()
        except BaseException as failure:  # threads that wait for the worker get the failure
            with self._change() as queue:
                queue.stop_captures(RuntimeError(f"the snapshot worker has ended: {failure}"), SnapshotState.PUBLISHED)
            raise

    def _next_work(self) -> Work:
        """Waits for the next task and returns it."""
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
        """Captures on the worker, because the training thread has not done so in time.

        If the training thread has ended, or is in the program's own code between two calls, the
        worker can take the boundary's lock.  It then captures, unless the last call has raised an
        error.  If the training thread is in a call, the worker captures only if the program was
        asked to stop, no call has ended since the worker's last try, and the call cannot change the
        state.
        """
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
            self.queue.postpone_worker(self._clock.monotonic())
