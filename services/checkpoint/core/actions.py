"""Actions that the core asks of the main loop.  Plain data; each names the event that answers it."""

from __future__ import annotations

from dataclasses import dataclass

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.messages import CheckpointPlan, Message
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import Sighting, State, Verified


@dataclass(frozen=True, slots=True)
class Acknowledge:
    to: Received


@dataclass(frozen=True, slots=True)
class Reply:
    """Answers reliably."""

    to: Received
    body: Message


@dataclass(frozen=True, slots=True)
class Announce:
    """Tells every trainer and watchdog, reliably."""

    body: Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Answered by `saved`, `save_failed` or `save_lost`."""

    state: State
    reason: Reason
    plan: CheckpointPlan


@dataclass(frozen=True, slots=True)
class TakeStock:
    """Answered by `stocked`."""

    plan: CheckpointPlan


@dataclass(frozen=True, slots=True)
class VerifySlot:
    """Answered by `slot_verified` or `verify_lost`."""

    state: State


@dataclass(frozen=True, slots=True)
class Find:
    """Answered by `found`.  `before`: only checkpoints of an earlier step will do (-1: any)."""

    plan: CheckpointPlan
    before: int = -1


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody restores from a checkpoint any more: old ones may be deleted again."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Unlinks a slot that nobody needs."""

    slot: SlotInfo


@dataclass(frozen=True, slots=True)
class RemoveStaged:
    state: State


@dataclass(frozen=True, slots=True)
class ScanDirectory:
    """Scans the directory for external checkpoints.  Answered by `scanned` or `scan_failed`."""

    plan: CheckpointPlan


@dataclass(frozen=True, slots=True)
class Examine:
    """Reads what somebody else has saved.  Answered by `examined`."""

    sighting: Sighting
    plan: CheckpointPlan


@dataclass(frozen=True, slots=True)
class Adopt:
    """Gives it a manifest, and a place on the list if it is to have one.  Answered by `adopted` or `adopt_failed`.

    `own`: the supervised Saver has saved it, so that it is counted and is deleted when `max_to_keep` asks for it.
    """

    examined: Verified
    own: bool
    plan: CheckpointPlan


@dataclass(frozen=True, slots=True)
class MakeOwn:
    """What was adopted as another Saver's is the supervised one's after all: the trainer's report came late."""

    path: str
    plan: CheckpointPlan


Action = (
    Acknowledge
    | Reply
    | Announce
    | Persist
    | TakeStock
    | VerifySlot
    | Find
    | Release
    | Retire
    | RemoveStaged
    | ScanDirectory
    | Examine
    | Adopt
    | MakeOwn
)
