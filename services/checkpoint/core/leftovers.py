"""Leftovers in memory and staging: slots of earlier trainers, and staged files, that nobody needs any more.

Used by core.py, after every event.  Pure.
"""

from __future__ import annotations

from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.actions import Action, RemoveStaged, Retire
from procsv.services.checkpoint.core.facts import State
from procsv.services.checkpoint.core.followers import Followers
from procsv.services.checkpoint.core.restore_choice import Restoring
from procsv.services.checkpoint.core.states import States


def clear_away(states: States, busy: State | None, restoring: Restoring, followers: Followers) -> list[Action]:
    """Removes them.  `busy`: the state that is being saved."""
    idle = (info for info in states.slots if busy is None or busy.slot != info)
    retired: list[Action] = [Retire(info) for info in idle if not _is_needed(info, states, restoring, followers)]
    return [*retired, *(RemoveStaged(state) for state in states.take_superseded(busy))]


def _is_needed(info: SlotInfo, states: States, restoring: Restoring, followers: Followers) -> bool:
    """Whether a slot is the present trainer's, or holds what is not on disk, or is being restored from."""
    if not states.is_ours(info.run):
        return states.asks_directory
    is_present = info.incarnation >= restoring.restored if info.run == states.run else not restoring.restored
    is_unsaved = info.state is SlotState.READY and not states.is_saved(info.run, info.incarnation, info.sequence)
    return (
        is_present
        or is_unsaved
        or restoring.is_asked
        or str(info.path) == restoring.served
        or followers.need(str(info.path))
    )
