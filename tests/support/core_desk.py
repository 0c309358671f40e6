"""Drive a checkpoint core and record the actions it asks for. The test owns the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procsv.base.identity import TRAINER, TaskId
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable, Snapshot
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import Finish
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.services.checkpoint.core.actions import (
    Action,
    Announce,
    Persist,
    Reply,
    ScanDirectory,
)
from procsv.services.checkpoint.core.core import CheckpointCore
from procsv.services.checkpoint.core.facts import DiskState, FoundCheckpoint, SavableState, Scan

PLAN = CheckpointPlan("/l/model.ckpt", "checkpoint", 600.0, 5, 10000.0, False, False, "")
NOTHING = DiskState(-1, 0, None, ())
NO_CHECKPOINT = FoundCheckpoint(None, (), (), "")


def slot(
    sequence: int, step: int, incarnation: int = 1, run: str = "r", state: SlotState = SlotState.READY
) -> SlotInfo:
    return SlotInfo(
        Path(f"/s/slot.{incarnation}.{sequence % 2}"), state, TRAINER, incarnation, sequence, step, run, 0, 0, 0
    )


def durable_of(state: SavableState, reason: Any = "periodic") -> Durable:
    path = f"/l/model.ckpt-{state.step}"
    return Durable(state.sequence, state.step, state.incarnation, path, reason, 10, 0.1, (path,), run=state.run)


@dataclass
class Desk:
    """Drives a core and keeps its actions."""

    core: CheckpointCore = field(default_factory=lambda: CheckpointCore("r", TRAINER))
    now_s: float = 0.0
    slots: list[SlotInfo] = field(default_factory=list)
    out: list[Action] = field(default_factory=list)
    seq: int = 0
    leaves_looks: bool = False

    def see(self, actions: list[Action]) -> list[Action]:
        """Record the actions. Answer a directory scan with "nothing new", unless the test wants to
        answer itself.
        """
        while not self.leaves_looks and (looks := [a for a in actions if isinstance(a, ScanDirectory)]):
            actions = [a for a in actions if a not in looks]
            actions += self.core.scanned(Scan((), None, ""), self.now_s)
        self.out += actions
        return actions

    def say(self, body: Message, incarnation: int = 1, task: TaskId = TRAINER) -> list[Action]:
        self.seq += 1
        self.core.slots_seen(self.slots)
        received = Received(b"t", task, incarnation, self.seq, 0, body, None)
        if isinstance(body, Finish):
            return self.see(self.core.finish_run(received, self.now_s))
        return self.see(self.core.handle_message(received, self.now_s))

    def ready(self, *slots: SlotInfo) -> None:
        self.slots = list(slots)
        self.core.slots_seen(self.slots)

    def snapshot(self, info: SlotInfo, want: Any = "") -> list[Action]:
        kept = [s for s in self.slots if s.path != info.path]
        self.ready(*kept, info)
        return self.say(Snapshot(info.sequence, info.step, want), info.incarnation)

    def after(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.see(self.core.tick(self.now_s))

    def begun(self, stock: DiskState = NOTHING) -> Desk:
        self.say(PLAN)
        self.see(self.core.stocked(stock, self.now_s))
        self.out.clear()
        return self

    def saved(self, action: Persist) -> list[Action]:
        return self.see(self.core.saved(durable_of(action.state, action.reason), self.now_s))


def only(actions: list[Action], kind: type[Any]) -> Any:
    found = [a for a in actions if isinstance(a, kind)]
    assert len(found) == 1, f"{kind.__name__} among {actions}"
    return found[0]


def bodies(actions: list[Action], kind: type[Any]) -> list[Any]:
    return [a.body for a in actions if isinstance(a, (Reply, Announce)) and isinstance(a.body, kind)]
