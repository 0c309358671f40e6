"""Define the actions that the core asks the main loop to perform.

They are plain data.  If an event reports the result of an action to the core, the action's
docstring names that event.
"""

from __future__ import annotations

import msgspec

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, RestoreFrom
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import SavableState, Sighting, Verified


class Action(msgspec.Struct, frozen=True):
    """Base class of everything that the main loop can be asked to do."""


class Acknowledge(Action, frozen=True):
    to: Received


class Reply(Action, frozen=True):
    """Answers reliably."""

    to: Received
    body: Message


class Offer(Action, frozen=True):
    """Answers reliably that the state is in memory, for a peer on another machine.

    process.py adds to `body` how that machine can fetch the state.
    """

    to: Received
    body: RestoreFrom


class Announce(Action, frozen=True):
    """Tells every trainer and watchdog, reliably."""

    body: Message


class Persist(Action, frozen=True):
    """Saves a state as a checkpoint.  Answered by `saved`, `save_failed` or `save_lost`."""

    state: SavableState
    reason: Reason
    plan: CheckpointPlan


class ListCheckpoints(Action, frozen=True):
    """Lists the checkpoints on disk, for a new plan.  Answered by `stocked` or `search_failed`."""

    plan: CheckpointPlan


class VerifySlot(Action, frozen=True):
    """Compares a slot with its checksums.  Answered by `slot_verified` or `verify_lost`."""

    state: SavableState


class Find(Action, frozen=True):
    """Searches for a checkpoint to restore.  Answered by `found` or `search_failed`.

    `before`: find only checkpoints of an earlier step (-1: of any step).
    """

    plan: CheckpointPlan
    before: int = -1


class Release(Action, frozen=True):
    """Lets the store delete old checkpoints again: no trainer restores from one any more."""


class Retire(Action, frozen=True):
    """Unlinks a slot that no process needs."""

    slot: SlotInfo


class RemoveStaged(Action, frozen=True):
    state: SavableState


class ScanDirectory(Action, frozen=True):
    """Scans the directory for external checkpoints.  Answered by `scanned` or `scan_failed`."""

    plan: CheckpointPlan


class Examine(Action, frozen=True):
    """Reads a checkpoint that another writer has saved.  Answered by `examined`."""

    sighting: Sighting
    plan: CheckpointPlan


class Adopt(Action, frozen=True):
    """Gives a checkpoint a manifest, and lists it if it belongs on the list.

    Answered by `adopted`.  `own`: the supervised Saver has saved it.  It then counts towards
    `max_to_keep`, and rotation may delete it.
    """

    examined: Verified
    own: bool
    plan: CheckpointPlan


class MakeOwn(Action, frozen=True):
    """Assigns an adopted checkpoint to the supervised Saver.

    It was adopted as another Saver's, because the trainer reported its save only later.
    """

    path: str
    plan: CheckpointPlan
