"""In simulated runs, copies of the chief's memory travel, are cut off or incomplete, and are older
or newer than the disk.

Real code decides who keeps a copy, when it is fetched, and what is kept, offered and used. The
invariants are in model/machines/copy_invariants.py.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from procsv.ipc.bulk.transfer import Transfer
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.states import States
from procsv.services.checkpoint.state_offers import MirrorSource
from procsv.training.snapshots.cadence import Cadence
from procsv.watchdog.machines.coordinator import MemoryCopyRestore
from procsv.watchdog.machines.core.memory_copy import Copy, TransferRate, newer_copies
from procsv.watchdog.machines.memory_copy import relay
from procsv.watchdog.machines.memory_copy.keeper import MemoryCopyKeeper
from procsv.watchdog.machines.memory_copy.relay import MemoryCopyRelay
from tests.simulation.machine_schedules import (
    Break,
    Breaks,
    Plan,
    Told,
    assert_break_is_reported,
    each_of,
    go,
    kill_launch,
    lose,
    prepare,
    slots,
)
from tests.simulation.model import history
from tests.simulation.model.machines import copies, facts, faults
from tests.simulation.model.machines.memory_copies import SimMemoryCopyFiles
from tests.simulation.model.machines.run import FleetRun
from tests.simulation.model.machines.victims import cut

GANG: dict[str, Any] = {"together": "in step", "steps": 120, "save_secs": 1000.0}
REVIVED: dict[str, Any] = {**GANG, "revives_s": 3.0}
LARGE: dict[str, Any] = {"size": 24 << 20, "bytes_per_s": 8.0 * 2**20}  # travels for three seconds
LOST_S = 25.0
TAKES = "procsv.watchdog.machines.coordinator.newer_copies"


def resumed(told: Told) -> list[tuple[str, int]]:
    return [(fact.source, fact.step) for fact in told.of(history.Restored)]


def losses(told: Told) -> list[tuple[float, float]]:
    """Return for each checked loss the training it cost and the most that it might have cost."""
    copies = told.run.checker.copies
    return list(zip(copies.behind_s, copies.limits_s, strict=True))


def test_the_memory_of_a_lost_coordinator_comes_from_the_copy_however_the_coordinator_comes_back() -> None:
    for how in (REVIVED, GANG):
        for seed in range(3):
            told = go(seed, [(LOST_S, lose(0))], **how)
            assert resumed(told)[0] == ("fresh", 0)
            (again,) = resumed(told)[1:]
            assert again[0] == "memory"
            (fetched,) = told.journaled("mirror_fetched")
            assert fetched.fields["step"] == again[1] > 0
            ((behind_s, limit_s),) = losses(told)
            assert behind_s <= limit_s == told.run.fleet.program.snapshot_s


def test_if_the_servers_that_hold_the_variables_lose_one_as_well_the_copy_is_what_is_left() -> None:
    told = go(1, [(LOST_S, lose(0)), (LOST_S + 1.0, lose(3))], revives_s=3.0, save_secs=1000.0, steps=300)
    assert told.journaled("mirror_fetched")
    assert resumed(told)[-1][0] == "memory"


def test_a_half_copy_on_a_machine_that_loses_its_launch_is_not_used() -> None:
    drafts = 0
    for seed in range(6):
        left: list[int] = []

        def look(run: FleetRun, rng: Random, left: list[int] = left) -> str:
            world = slots(run)[1].world
            left.append(len(world.mirror.drafts))
            return ""

        plan: Plan = [(LOST_S + 0.4 * seed, kill_launch(1)), (LOST_S + 0.4 * seed, look), (LOST_S + 2.5, lose(0))]
        told = go(seed, plan, **REVIVED, **LARGE)
        assert told.of(facts.Copied)
        drafts += left[0]
    assert drafts, "a copy was half there"


def test_a_copy_older_than_the_saved_state_is_ignored_and_the_checkpoint_is_restored() -> None:
    told = go(1, [(6.0, no_room_from_now_on), (LOST_S, lose(0))], **{**REVIVED, "save_secs": 3.0})
    assert told.journaled("mirror_not_kept")
    assert not told.journaled("mirror_fetched")
    assert resumed(told)[-1][0] == "checkpoint"


def cut_off_from_who_copies(run: FleetRun, rng: Random) -> str:
    chief, keeper = slots(run)[0].world, slots(run)[1].world
    cut(run, chief, [keeper.name], 60.0)
    return f"no packet between {chief.name} and {keeper.name}"


def test_a_run_that_stops_as_the_keeper_of_its_copy_is_lost_saves_its_last_step_though_a_snapshot_was_offered() -> None:
    for seed in range(5):
        told = go(seed, [(20.0 + 0.17 * seed, cut_off_from_who_copies)], slots=2)
        first = told.journaled("stopped")[0].fields
        assert first["source"] == "the loss of m1"
        assert first["durable_step"] >= first["step"]


def no_room_from_now_on(run: FleetRun, rng: Random) -> str:
    for slot in slots(run):
        slot.world.has_room = False
    run.fleet.disturb(1000.0)
    return "no machine has room for a copy any more"


def damage_from_now_on(run: FleetRun, rng: Random) -> str:
    run.fleet.damage = 0.5
    run.fleet.disturb(1000.0)
    return "snapshots are damaged on their way from now on"


# -- deliberate breaks -----------------------------------------------------------------------------------------
def _verifies_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copies, "verify", lambda slot, offer: None)


def _takes_half_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transfer, "is_complete", property(lambda self: 2 * self.come_bytes >= self.size))
    _verifies_nothing(patch)


def _keeps_no_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relay, "choose_keeper", lambda members, host: None)


def _never_asks_for_the_next(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransferRate, "fetched", lambda self, *_: self.stop())


def _rests_for_long(patch: pytest.MonkeyPatch) -> None:
    fetched = TransferRate.fetched

    def rest(self: TransferRate, *args: Any) -> None:
        fetched(self, *args)
        assert self.due_s is not None
        self.due_s += 8.0

    patch.setattr(TransferRate, "fetched", rest)


def _spaces_as_without_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cadence, "next_due_s", lambda self, published_s, sequence: published_s + self.fixed_s)


def _never_tells_the_chief(patch: pytest.MonkeyPatch) -> None:
    told = MemoryCopyRelay.told

    def tell_nobody(self: MemoryCopyRelay, *args: Any) -> list[Any]:
        told(self, *args)
        return []

    patch.setattr(MemoryCopyRelay, "told", tell_nobody)


def _offers_the_oldest(patch: pytest.MonkeyPatch) -> None:
    go_on = MirrorSource.answer_question

    def oldest(self: MirrorSource, slots: list[SlotInfo]) -> None:
        go_on(self, [slot for slot in slots if slot.sequence < max(one.sequence for one in slots)])

    patch.setattr(MirrorSource, "answer_question", oldest)


def _lets_go_of_the_old_one_before_the_new_one_is_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimMemoryCopyFiles, "make_room", lambda self, size: self.remove())


def _removes_it_when_the_coordinator_is_lost(patch: pytest.MonkeyPatch) -> None:
    close = MemoryCopyKeeper.close
    patch.setattr(MemoryCopyKeeper, "close", lambda self, keeps: close(self, keeps=False))


def _asks_nobody_for_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryCopyRestore, "take_in_turns", lambda self, offers: iter(()))


def _takes_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def older(found: list[tuple[Copy, Any]], own: list[Copy], saved_step: int, last_run: str) -> list[Any]:
        return [way for copy, way in found if copy.sequence < 3]

    patch.setattr(TAKES, older)


def _looks_at_nothing_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TAKES, lambda found, own, saved_step, last_run: newer_copies(found, own, -1, last_run))
    patch.setattr(States, "stocked", lambda self, stock: None)


LOSE: Plan = [(LOST_S, lose(0))]
OLD: Plan = [(6.0, no_room_from_now_on), (LOST_S, lose(0))]
BREAKS: Breaks = [
    ("i17_copies_are_whole", _verifies_nothing, [(10.0, damage_from_now_on)], REVIVED),
    ("i17_copies_are_whole", _takes_half_for_whole, LOSE, {**REVIVED, **LARGE}),
    ("i17_copies_are_new", _keeps_no_copy, LOSE, REVIVED),
    ("i17_copies_are_new", _never_asks_for_the_next, LOSE, REVIVED),
    ("i17_copies_are_new", _rests_for_long, LOSE, REVIVED),
    ("i17_copies_are_new", _spaces_as_without_a_copy, LOSE, REVIVED),
    ("i17_copies_are_new", _never_tells_the_chief, LOSE, REVIVED),
    ("i17_copies_are_new", _offers_the_oldest, LOSE, REVIVED),
    ("i17_copies_are_new", _lets_go_of_the_old_one_before_the_new_one_is_whole, LOSE, {**REVIVED, **LARGE}),
    ("i17_copies_are_new", _removes_it_when_the_coordinator_is_lost, LOSE, GANG),
    ("i17_copies_are_new", _asks_nobody_for_it, LOSE, REVIVED),
    ("i17_copies_are_new", _takes_the_oldest, LOSE, REVIVED),
    ("i2", _looks_at_nothing_on_disk, OLD, {**REVIVED, "save_secs": 3.0}),
]


@pytest.mark.long
@each_of(BREAKS)
def test_a_broken_invariant_of_copies_is_reported(
    name: str, breaks: Break, plan: Plan, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_break_is_reported(name, breaks, plan, how, monkeypatch)


def test_every_loss_of_memory_alone_is_checked() -> None:
    runs = [prepare(seed, [(LOST_S + 0.3 * seed, faults.lose_memory)], **REVIVED).run.go() for seed in range(4)]
    assert all(len(run.checker.copies.behind_s) == 1 for run in runs)
