"""Snapshot queue: pending requests, what one capture serves, and the worker's next task.

Pure: requests, events and a time in; decisions out.  The Snapshotter calls the queue with the
queue's lock held, and acts on the answer.  The queue never captures, copies or waits.

A pinned snapshot must itself become a checkpoint.  Until it is durable or has failed, nothing newer
is captured, because that would replace it.  A stop is the exception: then the last state matters
more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum, auto
from typing import Literal

import msgspec

from procsv.base.run.manifest import Reason
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_state import SnapshotEvent, SnapshotState, next_state

PATIENCE_S = 1.0  # how long a due snapshot waits for the training thread
STOP_PATIENCE_S = 1.0  # most programs end this soon after a stop request, and save a later state
AGAIN_S = 0.1  # between tries if no slot is free: the service still reads one, and the newest must stay
FAILED_PAUSE_S = 10.0  # after a failed snapshot of the cadence
CHECK_EVERY_S = 2.0  # between two checks that the snapshot memory is still there

Want = Reason | Literal[""]

_OUTSTANDING = frozenset({SnapshotState.CAPTURED, SnapshotState.COPIED, SnapshotState.PUBLISHED})


class Work(Enum):
    """The worker's next task."""

    COPY = auto()  # copy the oldest CAPTURED snapshot
    CHECK_MEMORY = auto()  # check that the snapshot memory is still there
    PREPARE = auto()  # get a slot for the cadence's next snapshot, which is due
    CAPTURE = auto()  # capture without the training thread, which has not reached the boundary
    SLEEP = auto()  # until `wakes_s`, or until something changes
    END = auto()


class SnapshotRequest(msgspec.Struct, frozen=True):
    """A request for a snapshot: by the cadence, a save, a stop, or the end of the session."""

    want: Want = ""  # why the service saves it immediately; "" (the cadence's): the service chooses when to save
    pinned: bool = False  # this very state becomes a checkpoint
    until: SnapshotState = SnapshotState.REQUESTED  # the caller waits for this state and gets failures on the way to it
    reuses: bool = False  # an earlier capture will do if no call of the session has ended since: the state is the same
    for_stop: bool = False  # the program is to end; the exact reason is known only at the capture


class Record(msgspec.Struct, eq=False):
    """The progress of one request.  Requests that one capture serves share its sequence number."""

    request: SnapshotRequest
    due_s: float  # from then on the training thread captures it, at its next boundary
    capture_s: float  # from then on the worker captures it, if the training thread has not
    state: SnapshotState = SnapshotState.REQUESTED
    sequence: int = 0  # set by its capture
    calls: int = -1  # finished calls of the session at its capture
    failure: Exception | None = None  # why it never reached the service


class SnapshotQueue(msgspec.Struct):
    """All snapshots of one session that are under way."""

    cadence: Cadence
    # In request order.  A record leaves the list once it is durable or has a `failure`; the cadence's, once published.
    records: list[Record] = msgspec.field(default_factory=list)
    asked: Record | None = None  # the newest capture that a request with a `want` led to; not the cadence's
    is_stopping: bool = False  # the run is to end, or this process is
    closed: Exception | None = None  # why nothing is captured any more
    check_s: float = math.inf  # next check of the snapshot memory; inf: there is none to check
    _is_spacing: bool = False  # the cadence is running
    _spaced_s: float | None = None  # when the cadence's next snapshot is due; None: under way, or no cadence

    # -- requests ----------------------------------------------------------------------------------
    def add_request(self, request: SnapshotRequest, now_s: float) -> Record:
        """Queues `request`; on a closed queue it fails immediately."""
        due_s = now_s + (STOP_PATIENCE_S if request.for_stop else 0.0)
        record = Record(request=request, due_s=due_s, capture_s=due_s + (0.0 if request.for_stop else PATIENCE_S))
        self.records.append(record)
        if self.closed is not None:
            self.fail((record,), self.closed, now_s)
        return record

    def start_cadence(self, now_s: float) -> None:
        self._is_spacing = True
        self._space(now_s)

    def stop_cadence(self) -> None:
        self._is_spacing, self._spaced_s = False, None
        self.drop_records(record for record in self._requested() if not record.request.want)

    def add_cadence_request(self, now_s: float) -> None:
        """Queues the cadence's due snapshot."""
        if self._spaced_s is not None:
            self._spaced_s = None
            self.add_request(SnapshotRequest(), now_s)

    def _space(self, from_s: float, sequence: int = 0) -> None:
        """Schedules the cadence's next snapshot.

        `sequence` is the snapshot that was published at `from_s`; 0 if there was none.
        """
        self._spaced_s = self.cadence.next_due_s(from_s, sequence) if self._is_spacing else None

    def drop_records(self, records: Iterable[Record]) -> None:
        """Removes `records` from the queue."""
        gone = set(records)
        self.records = [record for record in self.records if record not in gone]

    def stop_captures(self, why: Exception, kept_from: SnapshotState) -> None:
        """Ends captures; a capture that has reached `kept_from` is still completed."""
        self.closed = why
        self.stop_cadence()
        self.fail([record for record in self.records if record.state < kept_from], why, 0.0)

    # -- decisions ---------------------------------------------------------------------------------
    def next_work(self, now_s: float) -> Work:
        if any(record.state is SnapshotState.CAPTURED for record in self.records):
            return Work.COPY
        if self.closed is not None:
            return Work.END
        if self.check_s <= now_s:
            return Work.CHECK_MEMORY
        if self._spaced_s is not None and self._spaced_s <= now_s:
            return Work.PREPARE
        if any(record.capture_s <= now_s for record in self._free()):
            return Work.CAPTURE
        return Work.SLEEP

    def wakes_s(self, now_s: float) -> float | None:
        """When the worker must call `next_work` again even if nothing happens; None if never."""
        times = [record.due_s if record.due_s > now_s else record.capture_s for record in self._free()]
        times += [self._spaced_s] if self._spaced_s is not None else []
        return min([*times, self.check_s] if self.check_s < math.inf else times, default=None)

    def next_copy(self) -> int:
        """The sequence number of the oldest CAPTURED snapshot."""
        return min(record.sequence for record in self.records if record.state is SnapshotState.CAPTURED)

    def is_due(self, now_s: float) -> bool:
        """Whether the training thread should capture at its next boundary."""
        return any(record.due_s <= now_s for record in self._free())

    def is_free(self, record: Record) -> bool:
        """Whether no pinned snapshot blocks this request."""
        return record in self._free()

    def next_pinned(self) -> Record | None:
        """Returns a pinned request, if any; it must be captured before the next step."""
        return next((record for record in self._requested() if record.request.pinned), None)

    @property
    def owes(self) -> bool:
        """Whether a requested save has not been captured yet."""
        return any(record.request.want and not record.request.for_stop for record in self._requested())

    def choose_batch(
        self, now_s: float, calls: int, first: Record | None = None, is_urgent: bool = False
    ) -> list[Record]:
        """Chooses the requests that a capture at this moment serves; [] if there are none.

        `first` is served even before it is due, and with `is_urgent` even while a pinned snapshot
        is outstanding.
        """
        free = self._free()
        batch = [r for r in self._requested() if r is first or (r in free and r.due_s <= now_s)]
        same = self.asked
        if same is not None and same.calls == calls and same.failure is None:
            for record in [record for record in batch if record.request.reuses]:
                record.sequence, record.calls, record.state = same.sequence, same.calls, same.state
                batch.remove(record)
            self._forget_the_settled()
        if first in batch and first not in free and not is_urgent:
            return []
        return batch

    def _requested(self) -> list[Record]:
        return [record for record in self.records if record.state is SnapshotState.REQUESTED]

    def _free(self) -> list[Record]:
        """Requests that no pinned snapshot blocks."""
        is_pinned = any(record.request.pinned and record.state in _OUTSTANDING for record in self.records)
        return [r for r in self._requested() if not is_pinned or (self.is_stopping and r.request.want)]

    # -- events ------------------------------------------------------------------------------------
    def captured(self, batch: list[Record], sequence: int, calls: int, now_s: float) -> None:
        due_s = next((record.due_s for record in batch if not record.request.want), None)
        self.cadence.copies.captured(sequence, now_s, due_s)
        for record in batch:
            record.sequence, record.calls = sequence, calls
            record.state = next_state(record.state, SnapshotEvent.CAPTURE)
            if record.request.want:
                self.asked = record

    def put_off(self, batch: list[Record], now_s: float) -> None:
        """Postpones a batch that got no slot or whose state may be torn."""
        for record in batch:
            record.due_s = now_s + AGAIN_S
            record.capture_s = record.due_s + (0.0 if record.request.for_stop else PATIENCE_S)
        self.check_memory_soon(now_s)

    def postpone_worker(self, now_s: float) -> None:
        """Postpones the worker's next try: its last one has not captured these requests."""
        for record in self._requested():
            if record.capture_s <= now_s:
                record.capture_s = now_s + PATIENCE_S

    def copied(self, sequence: int) -> None:
        for record in self.of(sequence):
            record.state = next_state(record.state, SnapshotEvent.COPY)

    def outgrown(self, sequence: int, now_s: float) -> None:
        """Requests a new capture by the other backend: this one has outgrown its memory."""
        self._capture_anew(self.of(sequence), SnapshotEvent.OUTGROW, now_s)

    def snapshot_lost(self, sequence: int, now_s: float) -> None:
        """Requests a new capture: another process removed this one's memory during the copy."""
        self._capture_anew(self.of(sequence), SnapshotEvent.LOSE, now_s)
        self.check_memory_soon(now_s)

    def memory_checked(self, now_s: float, is_lost: bool) -> None:
        """Records the worker's check of the snapshot memory.

        `is_lost`: the worker has replaced lost memory, and the snapshots published there are gone.
        """
        self.check_s = now_s + CHECK_EVERY_S
        if is_lost:
            gone = [
                record for record in self.records if record.state in (SnapshotState.PUBLISHED, SnapshotState.FAILED)
            ]
            self._capture_anew(gone, SnapshotEvent.LOSE, now_s)
            self._spaced_s = None if self._spaced_s is None else now_s

    def check_memory_soon(self, now_s: float) -> None:
        """Makes the worker check at once whether the snapshot memory is still there."""
        self.check_s = min(self.check_s, now_s) if self.check_s < math.inf else math.inf

    @staticmethod
    def _capture_anew(records: list[Record], why: SnapshotEvent, now_s: float) -> None:
        for record in records:
            record.state = next_state(record.state, why)
            record.sequence, record.calls, record.due_s, record.capture_s = 0, -1, now_s, now_s + PATIENCE_S

    def published(self, sequence: int, now_s: float) -> None:
        for record in self.of(sequence):
            record.state = next_state(record.state, SnapshotEvent.PUBLISH)
            if not record.request.want:
                self._space(now_s, sequence)
        self.drop_records([r for r in self.records if r.state is SnapshotState.PUBLISHED and not r.request.want])

    def fail(self, batch: Iterable[Record], failure: Exception, now_s: float) -> None:
        """Marks a batch that will never reach the service."""
        for record in batch:
            record.state = next_state(record.state, SnapshotEvent.FAIL)
            record.failure = failure
            if not record.request.want:
                self._space(now_s + FAILED_PAUSE_S)
        self._forget_the_settled()

    def saved(self, sequence: int) -> None:
        """Records that `sequence` is a durable checkpoint, which settles older snapshots, too."""
        for record in self._with_the_service(sequence):
            record.state = next_state(record.state, SnapshotEvent.SAVE)
        self._forget_the_settled()

    def copy_kept(self, sequence: int, now_s: float) -> None:
        """Records that another machine has a copy of `sequence`.

        The new delay affects due times from the next publication on.
        """
        self.cadence.copies.kept(sequence, now_s)

    def save_failed(self, sequence: int) -> None:
        for record in self._with_the_service(sequence):
            record.state = next_state(record.state, SnapshotEvent.FAIL)

    def of(self, sequence: int) -> list[Record]:
        """Requests that snapshot `sequence` serves."""
        return [record for record in self.records if record.sequence == sequence]

    def _with_the_service(self, sequence: int) -> list[Record]:
        return [
            r
            for r in self.records
            if r.sequence <= sequence and r.state in (SnapshotState.PUBLISHED, SnapshotState.FAILED)
        ]

    def _forget_the_settled(self) -> None:
        self.drop_records([r for r in self.records if r.state is SnapshotState.DURABLE or r.failure is not None])
