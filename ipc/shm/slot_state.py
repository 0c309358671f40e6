"""Define the states of a snapshot slot, the transitions between them, and its header's contents.

Pure.  slot_file.py and slot_reader.py look up each transition here before they make it.

    FREE      may be written
    WRITING   a trainer fills it; if that trainer dies, the slot is torn and nobody reads it
    READY     has a whole snapshot, which outlives its trainer
    REMOVED   unlinked: nobody needs the snapshot, or a trainer has restored and privately maps it

Being read is not a state.  A reader holds a shared lock on the file of a READY slot.

One rule is not in the table: slot_file.py overwrites a READY slot only if a newer one is READY.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, auto
from pathlib import Path

import msgspec

from procsv.base.errors import ProcsvBug
from procsv.base.identity import TaskId


class SlotState(IntEnum):
    """The state in a slot's header; REMOVED is never stored."""

    FREE = 0
    WRITING = 1
    READY = 2
    REMOVED = 3


class SlotInfo(msgspec.Struct, frozen=True):
    """A slot's verified header."""

    path: Path
    state: SlotState
    task: TaskId  # the owner: no other task writes to it
    incarnation: int  # of the owner
    sequence: int
    step: int
    run: str
    toc_offset: int
    toc_size: int
    toc_hash: int


class SlotEvent(Enum):
    TRAINER_BEGINS = auto()
    TRAINER_PUBLISHES = auto()
    TRAINER_ABANDONS = auto()
    READER_OPENS = auto()
    NEXT_TRAINER_ADOPTS = auto()  # the previous owner is dead
    SERVICE_REMOVES = auto()


_S, _E = SlotState, SlotEvent

TRANSITIONS: Mapping[tuple[SlotState, SlotEvent], SlotState] = {
    (_S.FREE, _E.TRAINER_BEGINS): _S.WRITING,
    (_S.FREE, _E.NEXT_TRAINER_ADOPTS): _S.FREE,
    (_S.FREE, _E.SERVICE_REMOVES): _S.REMOVED,
    (_S.WRITING, _E.TRAINER_PUBLISHES): _S.READY,
    (_S.WRITING, _E.TRAINER_ABANDONS): _S.FREE,
    (_S.WRITING, _E.NEXT_TRAINER_ADOPTS): _S.FREE,
    (_S.WRITING, _E.SERVICE_REMOVES): _S.REMOVED,
    (_S.READY, _E.READER_OPENS): _S.READY,
    (_S.READY, _E.TRAINER_BEGINS): _S.WRITING,  # only if a newer slot is READY
    (_S.READY, _E.NEXT_TRAINER_ADOPTS): _S.FREE,
    (_S.READY, _E.SERVICE_REMOVES): _S.REMOVED,
}


def next_state(state: SlotState, event: SlotEvent) -> SlotState:
    """Returns the state after `event`; ProcsvBug for an impossible pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ProcsvBug(f"slot: {event.name} in {state.name}") from None
