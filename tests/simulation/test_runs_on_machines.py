"""Simulated runs on several machines under cuts, freezes, losses and notices, with a scheduler that
restarts the job.

There is one launch a task. The coordinator's core, event loop and table of remote tasks, the
members' core and loop, delivery and the checkpoint service are real. The seeds are the same every
time; scripts/simulate --machines tries others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from procsv.base.identity import TaskId
from procsv.base.run.lease import Lease
from procsv.watchdog.core.end.ending import EndOrder
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from procsv.watchdog.machines.core.member import Act, MemberCore
from procsv.watchdog.machines.core.membership import Member, Membership, OtherClock
from procsv.watchdog.machines.core.orders import Orders
from tests.simulation.machine_schedules import (
    Break,
    Breaks,
    Plan,
    assert_break_is_reported,
    each_of,
    go,
    kill,
    kill_launch,
    lose,
    stop_all,
    strand,
    strand_in_renewal,
    suspend,
)
from tests.simulation.model.group.served import ServedChief
from tests.simulation.model.machines import facts, faults
from tests.simulation.model.machines.run import draw_run, simulate_machines
from tests.simulation.model.machines.services import FencedStore
from tests.simulation.model.machines.shared import SharedLogdir, SimLeaseFile
from tests.simulation.seeds import seeds

SEEDS = 120
BLOCK = 40


@pytest.mark.long
@pytest.mark.parametrize("first", seeds(SEEDS, BLOCK))
def test_no_schedule_of_cuts_freezes_and_losses_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        assert simulate_machines(seed).is_over


def test_a_run_with_64_members_completes() -> None:
    run = simulate_machines(1, machines=64)
    assert len(run.fleet.tasks) == 65


def test_a_seed_of_several_machines_replays_event_for_event() -> None:
    for seed in range(3):
        told: list[list[str]] = [[], []]
        for lines in told:
            simulate_machines(seed, trace=lines.append)
        assert told[0] == told[1]
        assert len(told[0]) > 50


def test_every_fault_of_machines_is_injected_by_some_seed() -> None:
    assert {fault for seed in range(SEEDS) for _, fault in draw_run(seed).plan} == set(faults.FAULTS)


# -- single schedules ------------------------------------------------------------------------------------------
def test_a_spare_machine_replaces_a_lost_one_in_the_same_job() -> None:
    for rank in (1, 2, 3):
        told = go(rank, [(15.0, lose(rank))], spares=1)
        assert len(told.run.fleet.scheduler.attempts) == 1
        first, second = ({rank: task for task, rank, _ in formed.launches} for formed in told.of(facts.Formed))
        assert second[4] == first[rank], "launch 4 was the spare one"
        assert told.codes == [0, 0, 0, 0]


def test_without_a_spare_machine_the_job_is_restarted_and_nothing_is_lost() -> None:
    told = go(1, [(15.0, lose(2))])
    assert len(told.run.fleet.scheduler.attempts) == 2
    assert sorted(told.codes) == [0, 0, 0, 0, 75, 75, 75]


@pytest.mark.parametrize("fault", [strand, strand_in_renewal])
def test_a_stranded_coordinator_writes_nothing_once_another_one_has_the_logdir(fault: faults.Fault) -> None:
    for seed in range(4):
        told = go(seed, [(15.0, fault)])
        assert len(told.of(facts.LeaseTaken)) >= 2
        assert told.codes.count(70) == 1, "it has said why, and its scheduler is told"


def test_a_machine_suspended_with_its_clock_is_not_taken_for_one_whose_task_hangs() -> None:
    told = go(1, [(15.0, suspend(1)), (25.0, suspend(3))])
    assert told.journaled("hang_detected") == []
    assert told.journaled("member_lost") == []


# -- deliberate breaks -----------------------------------------------------------------------------------------
def _looks_at_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FencedStore, "_check_lease", lambda self: None)


def _makes_a_lease_again_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimLeaseFile, "successor", lambda self, run: None)


def _leaves_the_others_their_pens(patch: pytest.MonkeyPatch) -> None:
    def take(self: SimLeaseFile, lease: Lease, *, is_new: bool = False) -> None:
        self._make_fence(lease.run)
        self.replace(lease)

    patch.setattr(SimLeaseFile, "take_lease", take)


def _takes_a_term_that_is_there(patch: pytest.MonkeyPatch) -> None:
    def write_term(self: SharedLogdir, term: Any) -> Any:
        numbered = msgspec.structs.replace(term, number=max(self.terms, default=1))
        self.terms[numbered.number] = numbered
        return numbered

    patch.setattr(SharedLogdir, "write_term", write_term)


def _gives_each_order_twice(patch: pytest.MonkeyPatch) -> None:
    acknowledged, done = Orders.acknowledged, list[object]()

    def once_more(self: Orders, order: object) -> None:
        if any(one is order for one in done) or self.due() is not None:
            acknowledged(self, order)
        else:
            done.append(order)
            self._is_sent = False

    patch.setattr(Orders, "acknowledged", once_more)


def _ends_only_the_first_of_a_gang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainerSupervisor, "end_with_gang", lambda self, why, now_s: [])
    patch.setattr(TrainerSupervisor, "is_gone", True)


def _restores_over_a_living_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedChief, "_leave_alive", lambda self: iter(()))


def _ends_the_servers_with_the_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EndOrder, "_turn", lambda self, running_on, now_s, followers: list(running_on))


def _gives_the_spare_a_task_that_is_well(patch: pytest.MonkeyPatch) -> None:
    def next_hosts(self: Membership) -> dict[TaskId, Member] | None:
        there = [member for member in self.by_task.values() if not member.is_lost]
        tasks = sorted(self.with_tasks)
        return dict(zip(tasks, there, strict=False)) if len(there) >= len(tasks) else None

    patch.setattr(Membership, "next_hosts", next_hosts)


def _believes_the_slowest_message(patch: pytest.MonkeyPatch) -> None:
    def see(self: OtherClock, sent_s: float, now_s: float) -> None:
        self.ahead_s = max(now_s - sent_s, self.ahead_s if self.ahead_s is not None else now_s - sent_s)

    patch.setattr(OtherClock, "see", see)


def _never_forgets_a_message(patch: pytest.MonkeyPatch) -> None:
    def see(self: OtherClock, sent_s: float, now_s: float) -> None:
        self.ahead_s = min(now_s - sent_s, self.ahead_s if self.ahead_s is not None else now_s - sent_s)

    patch.setattr(OtherClock, "see", see)


def _ends_with_a_code_of_its_own(patch: pytest.MonkeyPatch) -> None:
    told_end = MemberCore.told_end

    def end(self: MemberCore, exit_code: int, now_s: float) -> tuple[Act, ...]:
        acts = told_end(self, exit_code, now_s)
        self.exit_code = 75
        return acts

    patch.setattr(MemberCore, "told_end", end)


def _waits_for(times: float) -> Callable[[pytest.MonkeyPatch], None]:
    """Wait for the coordinator much longer than configured."""

    def waits_too_long(patch: pytest.MonkeyPatch) -> None:
        check = MemberCore.check

        def wait(self: MemberCore, now_s: float) -> tuple[Act, ...]:
            limit_s = self.coordinator_timeout_s
            self.coordinator_timeout_s = times * limit_s
            acts = check(self, now_s)
            self.coordinator_timeout_s = limit_s
            return acts

        patch.setattr(MemberCore, "check", wait)

    return waits_too_long


BREAKS: Breaks = [
    ("i13_one_writer", _looks_at_no_lease, [(15.0, strand)], {"save_secs": 20.0}),
    ("i13_one_writer", _makes_a_lease_again_that_is_gone, [(15.0, strand)], {"together": "in step", "save_secs": 20.0}),
    ("i13_one_writer", _leaves_the_others_their_pens, [(15.0, strand_in_renewal)], {"save_secs": 20.0}),
    ("i13_one_word", _takes_a_term_that_is_there, [(15.0, strand)], {}),
    ("orders_arrive_as_given", _gives_each_order_twice, [(15.0, kill(1))], {}),
    ("i14", _ends_only_the_first_of_a_gang, [(15.0, kill(1))], {"together": "in step", "restart": "gang"}),
    ("i15", _restores_over_a_living_model, [(15.0, kill(0))], {}),
    ("i16", _ends_the_servers_with_the_workers, [(15.0, stop_all)], {}),
    ("places_are_right", _gives_the_spare_a_task_that_is_well, [(15.0, lose(1))], {"spares": 1}),
    ("clocks_are_right", _believes_the_slowest_message, [(15.0, faults.slow_link)], {}),
    ("clocks_are_right", _never_forgets_a_message, [(15.0, suspend(1))], {"steps": 500}),
    ("ends_agree", _ends_with_a_code_of_its_own, [], {}),
    ("i7_ready_in_time", _waits_for(1e6), [(15.0, lose(0))], {}),
    ("ends_in_time", _waits_for(2.0), [(15.0, kill_launch(0))], {"coordinator_timeout_s": 60.0}),
]


@pytest.mark.long
@each_of(BREAKS)
def test_a_broken_invariant_of_several_machines_is_reported(
    name: str, breaks: Break, plan: Plan, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_break_is_reported(name, breaks, plan, how, monkeypatch)
