"""Snapshot states: one table.

    REQUESTED   wanted by the cadence, a save, a stop; nothing has been captured yet
    CAPTURED    taken between two steps, as views or copies that training does not change
    COPIED      whole outside the training process's own memory: it outlives the process
    PUBLISHED   the checkpoint service has been told
    DURABLE     it, or a newer one, is a verified checkpoint
    FAILED      it never came as far as the service, or the service could not save it (and tries again)

Pure.  Asked by snapshot_queue.py alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, auto

from procsv.base.errors import ProcsvBug


class SnapshotState(IntEnum):
    """In the order in which a snapshot passes them."""

    REQUESTED = 0
    CAPTURED = 1
    COPIED = 2
    PUBLISHED = 3
    DURABLE = 4
    FAILED = 5


class SnapshotEvent(Enum):
    """What happens to a snapshot."""

    CAPTURE = auto()
    COPY = auto()
    OUTGROW = auto()  # there is no room for it: it goes by the other backend, from a new capture
    LOSE = auto()  # somebody has removed the memory that it lay in: captured anew
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
    (SnapshotState.FAILED, SnapshotEvent.FAIL): SnapshotState.FAILED,  # the service fails again
    (SnapshotState.FAILED, SnapshotEvent.LOSE): SnapshotState.REQUESTED,
    (
        SnapshotState.FAILED,
        SnapshotEvent.SAVE,
    ): SnapshotState.DURABLE,  # it has succeeded at last, or a newer one is on disk
}


def next_state(state: SnapshotState, event: SnapshotEvent) -> SnapshotState:
    """ProcsvBug for an event that cannot happen in `state`."""
    if (state, event) not in TRANSITIONS:
        raise ProcsvBug(f"a snapshot: {event.name} in {state.name}")
    return TRANSITIONS[state, event]
