"""Snapshot queue: what is asked for, what one capture serves, and what the worker does next.

Pure: requests, news and a time in; decisions out.  Called by the Snapshotter, which holds its lock around each call and
acts on the answer.  Never captures, copies or waits.

A pinned snapshot becomes a checkpoint as it is: while it is neither durable nor failed, nothing newer is captured that
would take its place, except for a stop, when the last state is what counts.
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

PATIENCE_S = 1.0  # how long a due snapshot waits for the training thread to come by
STOP_PATIENCE_S = 1.0  # in which most programs that are asked to stop come to their end, which saves a later state
AGAIN_S = 0.1  # until the next try when no slot is free: the service still reads the other one
FAILED_PAUSE_S = 10.0  # after a snapshot of the cadence that went wrong
LOOK_EVERY_S = 2.0  # how often the worker looks whether the memory for snapshots is still there

Want = Reason | Literal[""]

_OUTSTANDING = frozenset({SnapshotState.CAPTURED, SnapshotState.COPIED, SnapshotState.PUBLISHED})


class Work(Enum):
    """What the worker does next."""

    COPY = auto()  # the oldest snapshot that is CAPTURED
    LOOK = auto()  # whether the memory for snapshots is still there
    PREPARE = auto()  # a slot for the cadence's next snapshot, which is due
    CAPTURE = auto()  # by itself: the training thread has not come by
    SLEEP = auto()  # until `wakes_s`, or until something changes
    END = auto()


class SnapshotRequest(msgspec.Struct, frozen=True):
    """A snapshot that somebody wants, whoever it is: the cadence, a save, a stop, the end of the session."""

    want: Want = ""  # the reason for which the service saves it at once; "": in its own time (the cadence's)
    pinned: bool = False  # this very state becomes a checkpoint
    until: SnapshotState = SnapshotState.REQUESTED  # how far its caller waits for it, and hears of its failure
    reuses: bool = False  # one that was asked for since the last call ended will do: it is of the same state
    for_stop: bool = False  # the program is to end; its reason is known for certain only when it is captured


class Record(msgspec.Struct, eq=False):
    """One request on its way.  Those that one capture serves share its sequence number."""

    request: SnapshotRequest
    due_s: float  # when the training thread captures it at its next boundary
    capture_s: float  # when the worker tries by itself
    state: SnapshotState = SnapshotState.REQUESTED
    sequence: int = 0  # from its capture on
    calls: int = -1  # of the session that had ended when it was captured
    failure: Exception | None = None  # why it never came as far as the service


class SnapshotQueue(msgspec.Struct):
    """All snapshots of one session that are under way."""

    cadence: Cadence
    records: list[Record] = msgspec.field(
        default_factory=list
    )  # in the order of asking, until they are durable or lost
    asked: Record | None = None  # the newest capture that somebody asked for
    is_stopping: bool = False  # the run is to end, or this process is
    closed: Exception | None = None  # why nothing is captured any more
    look_s: float = math.inf  # when the worker looks whether the memory for snapshots is there; inf: there is none
    _is_spacing: bool = False
    _spaced_s: float | None = None  # when the cadence's next snapshot is due; None: it is under way, or there is none

    # -- requests ------------------------------------------------------------------------------------------------
    def add_request(self, request: SnapshotRequest, now_s: float) -> Record:
        """Queues `request`; on a closed queue it has failed."""
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

    def add_spaced(self, now_s: float) -> None:
        """Queues the cadence's snapshot that is due."""
        if self._spaced_s is not None:
            self._spaced_s = None
            self.add_request(SnapshotRequest(), now_s)

    def _space(self, from_s: float, sequence: int = 0) -> None:
        """`sequence`: of the one that was published then; 0: none was."""
        self._spaced_s = self.cadence.next_due_s(from_s, sequence) if self._is_spacing else None

    def drop_records(self, records: Iterable[Record]) -> None:
        """Forgets `records`."""
        gone = set(records)
        self.records = [record for record in self.records if record not in gone]

    def stop_captures(self, why: Exception, kept_from: SnapshotState) -> None:
        """Nothing is captured any more; of what is, that which has come as far as `kept_from` is still seen through."""
        self.closed = why
        self.stop_cadence()
        self.fail([record for record in self.records if record.state < kept_from], why, 0.0)

    # -- decisions -----------------------------------------------------------------------------------------------
    def next_work(self, now_s: float) -> Work:
        if any(record.state is SnapshotState.CAPTURED for record in self.records):
            return Work.COPY
        if self.closed is not None:
            return Work.END
        if self.look_s <= now_s:
            return Work.LOOK
        if self._spaced_s is not None and self._spaced_s <= now_s:
            return Work.PREPARE
        if any(record.capture_s <= now_s for record in self._free()):
            return Work.CAPTURE
        return Work.SLEEP

    def wakes_s(self, now_s: float) -> float | None:
        """When there is something to do though nothing happens; None: never."""
        times = [record.due_s if record.due_s > now_s else record.capture_s for record in self._free()]
        times += [self._spaced_s] if self._spaced_s is not None else []
        return min([*times, self.look_s] if self.look_s < math.inf else times, default=None)

    def next_copy(self) -> int:
        """The sequence number of the oldest snapshot that is CAPTURED."""
        return min(record.sequence for record in self.records if record.state is SnapshotState.CAPTURED)

    def is_due(self, now_s: float) -> bool:
        """Whether the training thread is to capture at its next boundary."""
        return any(record.due_s <= now_s for record in self._free())

    def is_free(self, record: Record) -> bool:
        """Whether no pinned snapshot is in the way of this request."""
        return record in self._free()

    def next_pinned(self) -> Record | None:
        """A request that the boundary must not be passed without."""
        return next((record for record in self._requested() if record.request.pinned), None)

    @property
    def owes(self) -> bool:
        """Whether a save that was asked for has not been captured yet."""
        return any(record.request.want and not record.request.for_stop for record in self._requested())

    def choose_batch(
        self, now_s: float, calls: int, first: Record | None = None, is_urgent: bool = False
    ) -> list[Record]:
        """What a capture at this moment serves; [] if there is none to make.

        `first` is served whether it is due or not; `is_urgent`: although a pinned one is outstanding, too.
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
        """Requests that no pinned snapshot is in the way of."""
        is_pinned = any(record.request.pinned and record.state in _OUTSTANDING for record in self.records)
        return [r for r in self._requested() if not is_pinned or (self.is_stopping and r.request.want)]

    # -- events --------------------------------------------------------------------------------------------------
    def captured(self, batch: list[Record], sequence: int, calls: int, now_s: float) -> None:
        due_s = next((record.due_s for record in batch if not record.request.want), None)
        self.cadence.copies.captured(sequence, now_s, due_s)
        for record in batch:
            record.sequence, record.calls = sequence, calls
            record.state = next_state(record.state, SnapshotEvent.CAPTURE)
            if record.request.want:
                self.asked = record

    def put_off(self, batch: list[Record], now_s: float) -> None:
        """Nothing was captured: there was no slot, or the state may be torn."""
        for record in batch:
            record.due_s = now_s + AGAIN_S
            record.capture_s = record.due_s + (0.0 if record.request.for_stop else PATIENCE_S)
        self.look_soon(now_s)

    def missed(self, now_s: float) -> None:
        """The worker could not capture: the training thread is in a call."""
        for record in self._requested():
            if record.capture_s <= now_s:
                record.capture_s = now_s + PATIENCE_S

    def copied(self, sequence: int) -> None:
        for record in self.of(sequence):
            record.state = next_state(record.state, SnapshotEvent.COPY)

    def outgrown(self, sequence: int, now_s: float) -> None:
        """There is no room any more for what was captured: it is captured anew, for the other backend."""
        self._capture_anew(self.of(sequence), SnapshotEvent.OUTGROW, now_s)

    def snapshot_lost(self, sequence: int, now_s: float) -> None:
        """Somebody has removed what was captured while it was copied."""
        self._capture_anew(self.of(sequence), SnapshotEvent.LOSE, now_s)
        self.look_soon(now_s)

    def looked(self, now_s: float, is_lost: bool) -> None:
        """The worker has looked; `is_lost`: it has got the memory anew, and what had been published in the old is gone."""
        self.look_s = now_s + LOOK_EVERY_S
        if is_lost:
            gone = [
                record for record in self.records if record.state in (SnapshotState.PUBLISHED, SnapshotState.FAILED)
            ]
            self._capture_anew(gone, SnapshotEvent.LOSE, now_s)
            self._spaced_s = None if self._spaced_s is None else now_s

    def look_soon(self, now_s: float) -> None:
        """Something speaks for it that the memory is gone."""
        self.look_s = min(self.look_s, now_s) if self.look_s < math.inf else math.inf

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
        """They will never come as far as the service."""
        for record in batch:
            record.state = next_state(record.state, SnapshotEvent.FAIL)
            record.failure = failure
            if not record.request.want:
                self._space(now_s + FAILED_PAUSE_S)
        self._forget_the_settled()

    def saved(self, sequence: int) -> None:
        """The service has made a durable checkpoint of `sequence`, which is newer than all before it."""
        for record in self._with_the_service(sequence):
            record.state = next_state(record.state, SnapshotEvent.SAVE)
        self._forget_the_settled()

    def copy_kept(self, sequence: int, now_s: float) -> None:
        """Another machine has a copy of `sequence`: what comes after the next one that is published is due by that."""
        self.cadence.copies.kept(sequence, now_s)

    def save_failed(self, sequence: int) -> None:
        for record in self._with_the_service(sequence):
            record.state = next_state(record.state, SnapshotEvent.FAIL)

    def of(self, sequence: int) -> list[Record]:
        """The requests that snapshot `sequence` serves."""
        return [record for record in self.records if record.sequence == sequence]

    def _with_the_service(self, sequence: int) -> list[Record]:
        return [
            r
            for r in self.records
            if r.sequence <= sequence and r.state in (SnapshotState.PUBLISHED, SnapshotState.FAILED)
        ]

    def _forget_the_settled(self) -> None:
        self.drop_records([r for r in self.records if r.state is SnapshotState.DURABLE or r.failure is not None])
