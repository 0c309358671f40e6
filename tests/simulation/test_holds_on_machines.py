"""Holds over machines in simulated runs: links are cut and slow, chiefs and workers die, freeze and are lost while all stand.

What the chief says when, whether a step may begin, and how the chief learns of the others, are the real code; the invariants are in
model/machines/hold_invariants.py.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from procsv.training.holds.frames import Answer, Order, Released
from procsv.training.holds.gathering import Gathering, Said
from procsv.training.holds.held_steps import HeldSteps
from procsv.training.holds.holding import Holding
from procsv.watchdog.core.cluster.holds import Holds
from tests.simulation.machine_schedules import (
    Break,
    Breaks,
    Plan,
    Told,
    assert_break_is_reported,
    each_of,
    go,
    kill,
    slots,
    stop_all,
)
from tests.simulation.model import history
from tests.simulation.model.machines import facts, faults
from tests.simulation.model.machines.hold_faults import befall
from tests.simulation.model.machines.run import FleetRun, draw_run
from tests.simulation.model.machines.victims import cut

HELD: dict[str, Any] = {"consistent_snapshots": True}
SEEDS = 60
TOO_LONG = "the capture took longer than steps are held"  # one of ten does, whatever else happens


def captured(told: Told) -> list[facts.CapturedHeld]:
    return told.of(facts.CapturedHeld)


def in_hold(kind: str, seconds: float, rank: int = 0) -> faults.Fault:
    """That befalls the machine of that launch, or its task, when all stand the next time."""

    def fault(run: FleetRun, rng: Random) -> str:
        where = [slot.world for slot in slots(run)]
        where[0].at_hold = lambda: befall(run, where[rank], kind, seconds)
        return f"{where[rank].name} is to be {kind} in the next hold"

    return fault


def cut_from_chief(rank: int, seconds: float) -> faults.Fault:
    """The servers are on other machines: both train on."""

    def fault(run: FleetRun, rng: Random) -> str:
        chief, other = slots(run)[0].world, slots(run)[rank].world
        cut(run, chief, [other.name], seconds)
        return f"no packet between {chief.name} and {other.name} for {seconds} s"

    return fault


def test_where_all_is_well_every_snapshot_is_of_one_step_once_all_have_begun() -> None:
    told = go(1, [], **HELD)
    ended = next(fact for fact in told.of(history.Died) if fact.task.role == "worker")
    snapshots = [one for one in told.facts[: told.facts.index(ended)] if isinstance(one, facts.CapturedHeld)]
    first = next(number for number, one in enumerate(snapshots) if not one.is_mixed)
    reasons = {one.why for one in snapshots[first:] if one.is_mixed}
    assert first < 5
    assert all("in a step" in why or "took longer" in why for why in reasons), reasons
    assert sum(not one.is_mixed for one in snapshots) > len(snapshots) / 2


def test_what_is_captured_while_a_link_is_cut_is_mixed_and_behind_the_cut_all_are_held_again() -> None:
    told = go(1, [(20.0, cut_from_chief(1, 8.0))], **HELD)
    began_s = 1020.0
    while_cut = [one for one in captured(told) if began_s + 0.1 < one.ended_s < began_s + 8.0]
    assert while_cut
    assert all(one.is_mixed and "worker.0" in one.why for one in while_cut)
    assert any(not one.is_mixed for one in captured(told) if one.begun_s > began_s + 8.0)
    assert not told.journaled("member_lost")


def test_a_chief_that_dies_while_it_holds_lets_go_by_dying_and_the_next_one_holds_all_again() -> None:
    told = go(1, [(20.0, in_hold("killed", 0.0))], **HELD)
    (died,) = [fact for fact in told.of(history.Died) if fact.task.role == "chief" and fact.by == "outside"]
    behind = told.facts[told.facts.index(died) :]
    assert any(isinstance(fact, facts.Stood) for fact in behind), "they stood until their own limit"
    assert any(isinstance(fact, facts.CapturedHeld) and not fact.is_mixed for fact in behind)


def test_at_a_stop_the_last_snapshot_is_of_one_step_as_the_others_have_ended_before() -> None:
    for seed in range(4):
        told = go(seed, [(20.0, stop_all)], **HELD)
        ends = next(fact for fact in told.facts if isinstance(fact, facts.CoordinatorEnds))
        last = [one for one in told.facts[: told.facts.index(ends)] if isinstance(one, facts.CapturedHeld)][-1]
        assert not last.is_mixed or last.why == TOO_LONG, last.why


def test_drawn_schedules_have_holds_of_every_kind() -> None:
    snapshots: list[facts.CapturedHeld] = []

    def note(fact: object, world: object) -> None:
        if isinstance(fact, facts.CapturedHeld):
            snapshots.append(fact)

    for seed in range(SEEDS):
        run = draw_run(seed)
        if run.fleet.holds:
            run.fleet.watchers.append(note)
            run.go()
    assert sum(not one.is_mixed for one in snapshots) > SEEDS
    for reason in ("in a step", "not answer", "only just begun", "no step yet", "took longer"):
        assert any(reason in one.why for one in snapshots), reason


# -- broken on purpose -----------------------------------------------------------------------------------------
def _counts_what_is_not_heard_as_so(patch: pytest.MonkeyPatch) -> None:
    begin = Gathering.__init__

    def standing(self: Gathering, *how: Any) -> None:
        begin(self, *how)
        self.said = dict.fromkeys(self.said, Said.HELD)

    patch.setattr(Gathering, "__init__", standing)
    patch.setattr(Gathering, "why_not_whole", lambda self: "gone on" if Said.BROKEN in self.said.values() else "")


def _believes_without_the_last_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gathering, "why_not_whole", lambda self: "")


def _says_that_it_has_stood(patch: pytest.MonkeyPatch) -> None:
    end = HeldSteps._end

    def whole(self: HeldSteps, owner: str, number: int, now_s: float) -> Answer:
        end(self, owner, number, now_s)
        return Released(number, True, 0.0)

    patch.setattr(HeldSteps, "_end", whole)


def _begins_steps_while_it_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldSteps, "wait_s", lambda self, now_s: 0.0)


def _holds_only_those_that_it_knows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holding, "_why_not_held", lambda self, now_s: "")


def _takes_a_lost_task_for_one_that_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holds, "launch_lost", lambda self, task: None)


def _has_no_limit_of_its_own(patch: pytest.MonkeyPatch) -> None:
    ordered = HeldSteps.ordered

    def for_ever(self: HeldSteps, order: Order, now_s: float) -> Answer | None:
        answer = ordered(self, order, now_s)
        if self._hold is not None:
            self._hold.until_s = now_s + 1e6
        return answer

    patch.setattr(HeldSteps, "ordered", for_ever)


ONE_STEP, FOR_LONG = "i19_held_is_of_one_step", "i19_nobody_stands_for_long"
CUT: Plan = [(20.0, cut_from_chief(1, 8.0))]
LOST: Plan = [(20.0, cut_from_chief(2, 60.0))]
SUSPENDED: Plan = [(20.0 + 2 * number, in_hold("suspended", 1.0)) for number in range(5)]
BREAKS: Breaks = [
    (ONE_STEP, _counts_what_is_not_heard_as_so, CUT, HELD),
    (ONE_STEP, _believes_without_the_last_word, SUSPENDED, HELD),
    (ONE_STEP, _says_that_it_has_stood, SUSPENDED, HELD),
    (ONE_STEP, _begins_steps_while_it_is_held, [], HELD),
    (ONE_STEP, _holds_only_those_that_it_knows, [*CUT, (20.5, kill(0))], HELD),
    (ONE_STEP, _takes_a_lost_task_for_one_that_has_ended, LOST, {**HELD, "step_s": 2.0}),
    (FOR_LONG, _has_no_limit_of_its_own, [(20.0, in_hold("killed", 0.0))], HELD),
]


@each_of(BREAKS)
def test_an_invariant_of_holds_that_is_broken_is_reported(
    name: str, breaks: Break, plan: Plan, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_break_is_reported(name, breaks, plan, how, monkeypatch)
