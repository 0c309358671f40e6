"""In any order of events the core loses nothing acknowledged and answers every request."""

from __future__ import annotations

import random

import pytest

from procsv.base.identity import TRAINER, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import Durable, Restore, Restored, RestoreFrom, Snapshot
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.watchdog_messages import Finish, TrainerExited
from procsv.services.checkpoint.core.actions import (
    Acknowledge,
    Action,
    Find,
    ListCheckpoints,
    Persist,
    Reply,
    Retire,
    ScanDirectory,
    VerifySlot,
)
from procsv.services.checkpoint.core.facts import Candidate, DiskState, FoundCheckpoint, SavableState, Scan
from tests.support.core_desk import PLAN, Desk, durable_of, slot


class World:
    """Slots, a disk and jobs that may fail around a core. It checks the invariants after every event."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = Desk(leaves_looks=True)
        self.last_asked = 0
        self.user_step = -1  # the step of the program's own last save
        self.jobs: list[Action] = []
        self.open: dict[int, Message] = {}  # reliable questions not yet answered
        self.sequence = self.step = self.on_disk = self.disk_step = 0
        self.incarnation = 1
        self.tell(PLAN)

    def tell(self, body: Message) -> None:
        task = WATCHDOG if isinstance(body, (TrainerExited, Finish)) else TRAINER
        self.open[self.desk.seq + 1] = body
        if isinstance(body, Restore):
            self.last_asked = self.desk.seq + 1
        self.take(self.desk.say(body, self.incarnation, task))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Acknowledge(to):
                    self.open.pop(to.seq, None)
                case Reply(to, body):
                    self.open.pop(to.seq, None)
                    self.check_answer(body)
                case Retire(info):
                    assert info.sequence <= self.on_disk, "a state that is nowhere else was removed"
                    self.desk.slots.remove(info)
                    self.desk.core.slots_seen(self.desk.slots)
                case ScanDirectory():
                    assert not any(isinstance(job, ScanDirectory) for job in self.jobs)
                    self.jobs.append(action)
                case Persist() | ListCheckpoints() | Find() | VerifySlot():
                    assert not (isinstance(action, Persist) and any(isinstance(j, Persist) for j in self.jobs))
                    self.jobs.append(action)
                case _:
                    pass

    def check_answer(self, body: Message) -> None:
        if isinstance(body, Durable):
            assert body.sequence <= self.on_disk, "acknowledged and not on disk"
        if isinstance(body, RestoreFrom):
            assert not body.error
            assert body.step >= self.newest_step or body.source == "fresh", "resumed before what was acknowledged"
            assert body.source != "fresh" or self.newest_step < 0
            assert body.sequence >= max([0, *(s.sequence for s in self.desk.slots)])

    @property
    def newest_step(self) -> int:
        return max(self.disk_step if self.on_disk else -1, self.user_step)

    @property
    def is_asked(self) -> bool:
        return self.last_asked in self.open  # earlier ones are superseded and never answered

    def act(self) -> None:
        match self.rng.randrange(10):
            case 0 | 1 | 2:
                self.sequence, self.step = self.sequence + 1, self.step + self.rng.randrange(3)
                info = slot(self.sequence, self.step, self.incarnation)
                self.desk.slots = [s for s in self.desk.slots if s.path != info.path] + [info]
                self.tell(Snapshot(info.sequence, info.step, self.rng.choice(["", "", "manual", "final"])))
            case 3:
                self.tell(TrainerExited(self.incarnation, self.rng.random() < 0.3))
                self.incarnation += 1
                self.tell(Restore(self.rng.random() < 0.3))
            case 4:
                self.tell(Restored())
            case 5:
                self.desk.now_s += self.rng.choice([0.1, 5.0, 700.0])
                self.take(self.desk.core.tick(self.desk.now_s))
            case 6 if not self.is_asked:  # the program saves by itself, once its trainer has its state
                self.user_step = self.step
                if self.rng.random() < 0.5:
                    self.take(self.desk.core.changed(self.desk.now_s))
            case _:
                self.end_a_job()

    def end_a_job(self, well: bool = False) -> None:
        if not self.jobs:
            return
        job = self.jobs.pop(self.rng.randrange(len(self.jobs)))
        core, now_s = self.desk.core, self.desk.now_s
        core.slots_seen(self.desk.slots)
        match job:
            case Persist(state, reason):
                if well or self.rng.random() < 0.7:
                    self.on_disk, self.disk_step = state.sequence, state.step
                    self.take(core.saved(durable_of(state, reason), now_s))
                else:
                    self.take(core.save_failed("bad luck", now_s))
            case ListCheckpoints():
                self.take(core.stocked(DiskState(self.newest_step, self.on_disk, None, ()), now_s))
            case ScanDirectory():
                self.take(core.scanned(Scan((), self.newest_step, ""), now_s))
            case VerifySlot(state):
                there = any(SavableState.of_slot(info) == state for info in self.desk.slots)
                self.take(core.slot_verified(state, now_s) if there else core.verify_lost(state, "gone", False, now_s))
            case Find():
                step, exists = self.newest_step, self.newest_step >= 0
                sequence = self.on_disk if step == self.disk_step else 0
                good = Candidate(f"/l/model.ckpt-{step}", step, sequence, True)
                found = FoundCheckpoint(good if exists else None, (), (), "")
                self.take(core.found(found, now_s))


@pytest.mark.parametrize("seed", range(400))
def test_in_any_order_of_events_nothing_acknowledged_is_lost_and_every_request_is_answered(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.act()
    world.tell(Finish())
    for _ in range(60):  # from now on nothing fails
        world.end_a_job(well=True)
        world.desk.now_s += 60.0
        world.take(world.desk.core.tick(world.desk.now_s))
    assert world.desk.core.waiting.settled, f"seed {seed}"
    newest = max((s.sequence for s in world.desk.slots), default=0)
    assert world.on_disk >= newest, f"seed {seed}"
    superseded = [b for b in world.open.values() if not isinstance(b, Restore)]
    assert superseded == [], f"seed {seed}"
    assert not world.is_asked, f"seed {seed}: the last trainer's question was not answered"
