"""Actions that the core asks of the main loop.  Plain data; each names the event that answers it."""

from __future__ import annotations

import msgspec

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, RestoreFrom
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import SavableState, Sighting, Verified


class Action(msgspec.Struct, frozen=True):
    """Base of all: something for the main loop to do."""


class Acknowledge(Action, frozen=True):
    to: Received


class Reply(Action, frozen=True):
    """Answers reliably."""

    to: Received
    body: Message


class Offer(Action, frozen=True):
    """Answers reliably that the state is in memory, with how another machine fetches it."""

    to: Received
    body: RestoreFrom


class Announce(Action, frozen=True):
    """Tells every trainer and watchdog, reliably."""

    body: Message


class Persist(Action, frozen=True):
    """Answered by `saved`, `save_failed` or `save_lost`."""

    state: SavableState
    reason: Reason
    plan: CheckpointPlan


class TakeStock(Action, frozen=True):
    """Answered by `stocked`."""

    plan: CheckpointPlan


class VerifySlot(Action, frozen=True):
    """Answered by `slot_verified` or `verify_lost`."""

    state: SavableState


class Find(Action, frozen=True):
    """Answered by `found`.  `before`: only checkpoints of an earlier step will do (-1: any)."""

    plan: CheckpointPlan
    before: int = -1


class Release(Action, frozen=True):
    """Nobody restores from a checkpoint any more: old ones may be deleted again."""


class Retire(Action, frozen=True):
    """Unlinks a slot that nobody needs."""

    slot: SlotInfo


class RemoveStaged(Action, frozen=True):
    state: SavableState


class ScanDirectory(Action, frozen=True):
    """Scans the directory for external checkpoints.  Answered by `scanned` or `scan_failed`."""

    plan: CheckpointPlan


class Examine(Action, frozen=True):
    """Reads what somebody else has saved.  Answered by `examined`."""

    sighting: Sighting
    plan: CheckpointPlan


class Adopt(Action, frozen=True):
    """Gives it a manifest, and a place on the list if it is to have one.  Answered by `adopted` or `adopt_failed`.

    `own`: the supervised Saver has saved it, so that it is counted and is deleted when `max_to_keep` asks for it.
    """

    examined: Verified
    own: bool
    plan: CheckpointPlan


class MakeOwn(Action, frozen=True):
    """What was adopted as another Saver's is the supervised one's after all: the trainer's report came late."""

    path: str
    plan: CheckpointPlan
