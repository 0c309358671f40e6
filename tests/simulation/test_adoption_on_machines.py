"""In simulated runs, tasks that outlive a lost coordinator continue with the next one and ignore the old one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from procsv import __version__
from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import Join, Refused
from procsv.ipc.messaging.start import Start
from procsv.watchdog.machines.forming import REPLACED
from procsv.watchdog.machines.member_loop import MemberLoop
from procsv.watchdog.machines.remote_tasks import member_id
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
    strand,
)
from tests.simulation.model import history
from tests.simulation.model.commit import SimFencedRename
from tests.simulation.model.group.served import ServedChief
from tests.simulation.model.machines import facts, faults
from tests.simulation.model.machines.forming import SimForming
from tests.simulation.model.machines.links import LinkClient, LinkServer
from tests.simulation.model.machines.run import FleetRun

LIVES: dict[str, Any] = {"revives_s": 3.0, "steps": 700}


def adopted(told: Told) -> list[str]:
    return sorted(str(fact.task) for fact in told.journaled("adopted"))


def sources(told: Told) -> list[str]:
    return [fact.source for fact in told.of(history.Restored)]


@pytest.mark.parametrize("lost", [kill_launch(0), lose(0)], ids=["launch", "machine"])
def test_tasks_that_outlive_their_coordinator_continue_with_the_next_and_no_step_is_lost(lost: faults.Fault) -> None:
    for seed in range(3):
        told = go(seed, [(15.0, lost)], names_tasks=True, **LIVES)
        assert len(told.run.fleet.scheduler.attempts) == 1
        assert adopted(told) == ["ps.0", "worker.0", "worker.1"]
        assert sources(told)[1:] == ["alive"], "the chief leaves the model alone"
        born = [fact.task for fact in told.of(history.Born) if fact.task.role in ("ps", "worker")]
        assert len(born) == 3, "nobody is started again"
        assert set(told.codes) == {0}


def test_tasks_are_adopted_as_often_as_their_coordinator_is_lost() -> None:
    told = go(1, [(15.0, kill_launch(0)), (45.0, kill_launch(0)), (75.0, kill_launch(0))], **LIVES)
    assert len(told.of(facts.Formed)) == 4
    assert adopted(told) == sorted(["ps.0", "worker.0", "worker.1"] * 3)


def test_a_coordinator_that_comes_back_after_the_limit_finds_no_tasks_and_the_job_starts_over() -> None:
    told = go(1, [(15.0, kill_launch(0))], revives_s=90.0, coordinator_timeout_s=60.0)
    assert adopted(told) == []
    assert len(told.run.fleet.scheduler.attempts) == 2
    assert sources(told)[-1] != "alive"


def test_if_a_server_is_lost_as_well_and_in_a_gang_all_tasks_restart_in_the_same_job() -> None:
    for how in (
        {"plan": [(15.0, kill_launch(0)), (16.0, kill_launch(3))]},
        {"plan": [(15.0, kill_launch(0))], "together": "in step"},
    ):
        told = go(1, **how, revives_s=3.0)
        assert adopted(told) == []
        assert len(told.of(facts.Formed)) == 2
        assert len(told.run.fleet.scheduler.attempts) == 1


def test_a_stranded_coordinator_adopts_orders_and_writes_nothing_any_more() -> None:
    found = 0
    for seed in range(4):
        told = go(seed, [(15.0, strand)], names_tasks=True, **LIVES)
        first, second = told.of(facts.LeaseTaken)
        assert told.codes.count(70) == 1, "it has said why"
        found += bool(adopted(told))
        assert {order.run for order in told.of(facts.Ordered)} <= {first.run, second.run}
    assert found, "the next one goes on with what the first had"


def stand_still_at(step: int) -> faults.Fault:
    """Freeze in the next commit from that step on."""

    def fault(run: FleetRun, rng: Random) -> str:
        world = slots(run)[0].world
        world.at_commit = step, lambda: run.fleet.say(strand(run, rng))
        return f"{world.name} is to stand still at step {step} of its next commit"

    return fault


STEPS = range(0, 15, 3)  # of about twenty; the last ones are deletions


@pytest.mark.parametrize("step", STEPS)
def test_a_machine_frozen_at_any_step_of_a_commit_changes_nothing_once_another_one_has_read_the_logdir(
    step: int,
) -> None:
    told = go(step, [(15.0, stand_still_at(step))], revives_s=3.0, names_tasks=True)
    assert len(told.of(facts.LeaseTaken)) >= 2
    assert told.codes.count(70) == 1


# -- deliberate breaks -----------------------------------------------------------------------------------------
def _hears_the_old_one_still(patch: pytest.MonkeyPatch) -> None:
    go_on = MemberLoop._go_on_with

    def hear_both(self: Any, joined: Any) -> None:
        old = self._client
        old.close = lambda *_, **__: None
        go_on(self, joined)
        receive = self._client.receive
        self._client.receive = lambda: receive() or old.receive()
        resend_due = self._client.resend_due
        self._client.resend_due = lambda: (old.resend_due(), resend_due())[1]

    patch.setattr(MemberLoop, "_go_on_with", hear_both)


def _restores_over_a_living_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedChief, "_leave_alive", lambda self: iter(()))


def _writes_by_no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFencedRename, "check", lambda self: None)


BREAKS: Breaks = [
    ("i15", _restores_over_a_living_model, [(15.0, kill_launch(0))], {"names_tasks": True, **LIVES}),
    ("orders_arrive_as_given", _hears_the_old_one_still, [(15.0, strand)], {"names_tasks": True, **LIVES}),
    ("i13_one_writer", _writes_by_no_fence, [(15.0, stand_still_at(3))], {"revives_s": 3.0, "names_tasks": True}),
]


@pytest.mark.long
@each_of(BREAKS)
def test_a_broken_invariant_of_adoption_is_reported(
    name: str, breaks: Break, plan: Plan, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_break_is_reported(name, breaks, plan, how, monkeypatch)


# -- two launches of one task ----------------------------------------------------------------------------------
def test_a_launch_whose_task_another_launch_has_taken_learns_so_and_ends_with_75() -> None:
    fleet = prepare(0, []).run.fleet
    while not fleet.scheduler.attempts:
        fleet.clock.step()
    slot, world = fleet.scheduler.attempt.slots[0], fleet.new_world()
    server = LinkServer(fleet.links, world.name, 7, Address("r", WATCHDOG, 1), world.clock, lambda: None)
    start = Start(WATCHDOG, "r", 1, "/logdir", "/run", "/shm", target="train.py", settings=fleet.settings)
    forming, heard, clients = SimForming(start, world, slot, server), list[list[Any]](), list[LinkClient]()
    for number in range(2):
        machine = fleet.new_world()
        who = Address("r", member_id(1), 1)
        client = LinkClient(fleet.links, machine.name, 7, who, machine.clock, lambda: None)
        client.send_reliable(Join(fleet.tasks[1], machine.name, f"n{number}:1", __version__, ("train.py",), number))
        heard.append([])
        while len(forming.asked) == 0 or forming.membership.by_task[fleet.tasks[1]].pid != number:
            fleet.clock.step()
            client.resend_due()
            forming.hear()
        clients.append(client)
    for _ in range(200):
        fleet.clock.step()
        for client, bodies in zip(clients, heard, strict=True):
            client.resend_due()
            while (received := client.receive()) is not None:
                bodies.append(received.body)
    (refused,) = [body for body in heard[0] if isinstance(body, Refused)]
    assert (refused.exit_code, refused.why) == (75, REPLACED)
    assert not [body for body in heard[1] if isinstance(body, Refused)]
