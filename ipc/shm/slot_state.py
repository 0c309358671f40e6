"""The life of a snapshot slot, as a table.  Pure: slot_file.py acts on the files, the checkpoint core decides.

FREE      may be written
WRITING   a trainer fills it; if that trainer dies, it is torn and nobody reads it
READY     a whole snapshot; the newest READY slot is never overwritten before a newer one is READY
READING   the checkpoint service holds it to save it; if the service dies it is READY again
RETIRED   a trainer restored from it and maps it privately: unlinked once saved, never written again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from pathlib import Path

from procsv.base.errors import ProcsvBug


class SlotState(IntEnum):
    """As stored in a slot's header, but for READING, which is a lock held on the file."""

    FREE = 0
    WRITING = 1
    READY = 2
    READING = 3
    RETIRED = 4


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot's header, verified."""

    path: Path
    state: SlotState
    incarnation: int
    sequence: int
    step: int
    run: str
    toc_offset: int
    toc_size: int
    toc_hash: int


class SlotEvent(Enum):
    TRAINER_BEGINS = auto()
    TRAINER_PUBLISHES = auto()
    TRAINER_DIES = auto()
    NEWER_IS_READY = auto()
    SERVICE_TAKES = auto()
    SERVICE_DIES = auto()
    SAVED = auto()
    TRAINER_RESTORES = auto()


_S, _E = SlotState, SlotEvent

TRANSITIONS: Mapping[tuple[SlotState, SlotEvent], SlotState] = {
    (_S.FREE, _E.TRAINER_BEGINS): _S.WRITING,
    (_S.FREE, _E.TRAINER_DIES): _S.FREE,
    (_S.FREE, _E.NEWER_IS_READY): _S.FREE,
    (_S.FREE, _E.SERVICE_DIES): _S.FREE,
    (_S.WRITING, _E.TRAINER_PUBLISHES): _S.READY,
    (_S.WRITING, _E.TRAINER_DIES): _S.FREE,
    (_S.WRITING, _E.SERVICE_DIES): _S.WRITING,
    (_S.READY, _E.NEWER_IS_READY): _S.FREE,
    (_S.READY, _E.SERVICE_TAKES): _S.READING,
    (_S.READY, _E.TRAINER_DIES): _S.READY,
    (_S.READY, _E.SERVICE_DIES): _S.READY,
    (_S.READY, _E.TRAINER_RESTORES): _S.RETIRED,
    (_S.READING, _E.SAVED): _S.FREE,
    (_S.READING, _E.NEWER_IS_READY): _S.READING,
    (_S.READING, _E.TRAINER_DIES): _S.READING,
    (_S.READING, _E.SERVICE_DIES): _S.READY,
    (_S.READING, _E.TRAINER_RESTORES): _S.RETIRED,
    (_S.RETIRED, _E.SERVICE_TAKES): _S.RETIRED,
    (_S.RETIRED, _E.SAVED): _S.RETIRED,
    (_S.RETIRED, _E.NEWER_IS_READY): _S.RETIRED,
    (_S.RETIRED, _E.TRAINER_DIES): _S.RETIRED,
    (_S.RETIRED, _E.SERVICE_DIES): _S.RETIRED,
}


def next_state(state: SlotState, event: SlotEvent) -> SlotState:
    """The state after `event`; ProcsvBug for a pair that cannot happen."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ProcsvBug(f"slot: {event.name} in {state.name}") from None
