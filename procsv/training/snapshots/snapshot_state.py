"""Snapshot states: one table.

    REQUESTED   wanted by the cadence, a save or a stop; not captured yet
    CAPTURED    taken between two steps, as views or copies that training does not change
    COPIED      whole outside the training process's own memory, so it outlives the process
    PUBLISHED   announced to the checkpoint service
    DURABLE     it, or a newer one, is a verified checkpoint
    FAILED      it never reached the service, or the service could not save it (and retries)

Pure.  Only snapshot_queue.py changes a snapshot's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, auto

from procsv.base.errors import ProcsvBug


class SnapshotState(IntEnum):
    """The states in the order in which a snapshot passes them."""

    REQUESTED = 0
    CAPTURED = 1
    COPIED = 2
    PUBLISHED = 3
    DURABLE = 4
    FAILED = 5


class SnapshotEvent(Enum):
    """An event of a snapshot."""

    CAPTURE = auto()
    COPY = auto()
    OUTGROW = auto()  # no room for it: the other backend captures again
    LOSE = auto()  # another process removed its memory: captured again
    PUBLISH = auto()
    SAVE = auto()
    FAIL = auto()


TRANSITIONS: Mapping[tuple[SnapshotState, SnapshotEvent], SnapshotState] = {
    (SnapshotState.REQUESTED, SnapshotEvent.CAPTURE): SnapshotState.CAPTURED,
    (SnapshotState.REQUESTED, SnapshotEvent.FAIL): SnapshotState.FAILED,
    (SnapshotState.CAPTURED, SnapshotEvent.COPY): SnapshotState.COPIED,
    (SnapshotState.CAPTURED, SnapshotEvent.OUTGROW): SnapshotState.REQUESTED,
    (SnapshotState.CAPTURED, SnapshotEvent.LOSE): SnapshotState.REQUESTED,
    (SnapshotState.CAPTURED, SnapshotEvent.FAIL): SnapshotState.FAILED,
    (SnapshotState.COPIED, SnapshotEvent.PUBLISH): SnapshotState.PUBLISHED,
    (SnapshotState.COPIED, SnapshotEvent.FAIL): SnapshotState.FAILED,
    (SnapshotState.PUBLISHED, SnapshotEvent.SAVE): SnapshotState.DURABLE,
    (SnapshotState.PUBLISHED, SnapshotEvent.LOSE): SnapshotState.REQUESTED,
    (SnapshotState.PUBLISHED, SnapshotEvent.FAIL): SnapshotState.FAILED,
    (SnapshotState.FAILED, SnapshotEvent.FAIL): SnapshotState.FAILED,  # the service's retry failed
    (SnapshotState.FAILED, SnapshotEvent.LOSE): SnapshotState.REQUESTED,
    # The retry succeeded, or a newer snapshot is on disk.
    (SnapshotState.FAILED, SnapshotEvent.SAVE): SnapshotState.DURABLE,
}


def next_state(state: SnapshotState, event: SnapshotEvent) -> SnapshotState:
    """Returns the state after `event`; ProcsvBug if the event is impossible in `state`."""
    if (state, event) not in TRANSITIONS:
        raise ProcsvBug(f"a snapshot: {event.name} in {state.name}")
    return TRANSITIONS[state, event]
