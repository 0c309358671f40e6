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


class State(IntEnum):
    """In the order in which a snapshot passes them."""

    REQUESTED = 0
    CAPTURED = 1
    COPIED = 2
    PUBLISHED = 3
    DURABLE = 4
    FAILED = 5


class Event(Enum):
    """What happens to a snapshot."""

    CAPTURE = auto()
    COPY = auto()
    OUTGROW = auto()  # there is no room for it: it goes by the other backend, from a new capture
    LOSE = auto()  # somebody has removed the memory that it lay in: captured anew
    PUBLISH = auto()
    SAVE = auto()
    FAIL = auto()


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.REQUESTED, Event.CAPTURE): State.CAPTURED,
    (State.REQUESTED, Event.FAIL): State.FAILED,
    (State.CAPTURED, Event.COPY): State.COPIED,
    (State.CAPTURED, Event.OUTGROW): State.REQUESTED,
    (State.CAPTURED, Event.LOSE): State.REQUESTED,
    (State.CAPTURED, Event.FAIL): State.FAILED,
    (State.COPIED, Event.PUBLISH): State.PUBLISHED,
    (State.COPIED, Event.FAIL): State.FAILED,
    (State.PUBLISHED, Event.SAVE): State.DURABLE,
    (State.PUBLISHED, Event.LOSE): State.REQUESTED,
    (State.PUBLISHED, Event.FAIL): State.FAILED,
    (State.FAILED, Event.FAIL): State.FAILED,  # the service fails again
    (State.FAILED, Event.LOSE): State.REQUESTED,
    (State.FAILED, Event.SAVE): State.DURABLE,  # it has succeeded at last, or a newer one is on disk
}


def next_state(state: State, event: Event) -> State:
    """ProcsvBug for an event that cannot happen in `state`."""
    if (state, event) not in TRANSITIONS:
        raise ProcsvBug(f"a snapshot: {event.name} in {state.name}")
    return TRANSITIONS[state, event]
