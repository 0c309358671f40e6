"""Simulated runs of several tasks under random faults: chief, workers, servers and evaluators, and
tasks in step.

After every event I1 to I12 hold for every task, and I14 to I16 for all of them together. The seeds
are the same every time; scripts/simulate --tasks tries others.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from procsv.base.cluster import CHIEF
from procsv.base.identity import TaskId
from procsv.watchdog.core.end.ending import EndOrder
from procsv.watchdog.core.hangs.trainer_liveness import Liveness
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.trainer import TrainerSupervisor
from tests.simulation.model import faults, history
from tests.simulation.model.group import draw
from tests.simulation.model.group.served import ServedChief, Servers
from tests.simulation.model.network import Weather
from tests.simulation.model.processes import FOR_EVER_S
from tests.simulation.model.program import Program
from tests.simulation.model.run import Run, journaled, run_of_tasks, simulate
from tests.simulation.model.world import HANG_S, LAUNCH
from tests.simulation.reported import assert_reported
from tests.simulation.seeds import seeds

SEEDS = 60
BLOCK = 20
WORKER, SERVER, EVALUATOR = TaskId("worker", 0), TaskId("ps", 0), TaskId("evaluator", 0)
Plan = list[tuple[float, faults.Fault]]


@pytest.mark.parametrize("first", seeds(SEEDS, BLOCK))
def test_no_schedule_of_random_faults_breaks_an_invariant_of_several_tasks(first: int) -> None:
    for seed in range(first, first + BLOCK):
        assert simulate(seed, has_tasks=True).exit_code is not None


def test_a_seed_of_several_tasks_replays_event_for_event() -> None:
    for seed in range(3):
        told: list[list[str]] = [[], []]
        for lines in told:
            simulate(seed, trace=lines.append, has_tasks=True)
        assert told[0] == told[1]
        assert len(told[0]) > 50


def test_every_fault_of_several_tasks_is_injected_by_some_seed_and_every_kind_of_program_is_drawn() -> None:
    runs = [run_of_tasks(seed) for seed in range(SEEDS)]
    assert {fault for run in runs for _, fault in run.plan} >= set(draw.OF_GROUPS)
    assert {run.world.program.together for run in runs} == {"served", "in step"}
    assert {task.role for run in runs for task in run.world.settings.tasks} == {"chief", "worker", "ps", "evaluator"}


# -- single schedules ------------------------------------------------------------------------------------------
def go(seed: int, plan: Plan, together: str = "served", import_s: float = 2.0, **launch: Any) -> Run:
    is_served = together == "served"
    counts = {"workers": 2, "ps": 2, "evaluators": 1} if is_served else {"workers": 2}
    launch = {**counts, "standby": "off", **launch}
    settings = msgspec.structs.replace(LAUNCH, **launch)
    steps = 150 if is_served else 60
    program = Program(steps=steps, import_s=import_s, together=together)  # type: ignore[arg-type]
    return Run(seed, program, list(plan), settings=Settings(settings, tasks=settings.tasks)).go()


def freeze_for_ever(task: TaskId) -> faults.Fault:
    def fault(run: Run, rng: Random) -> str:
        process = run.world.find(task)
        assert process is not None
        process.freeze(FOR_EVER_S)
        run.world.disturb(faults.HANG_S_MAX)
        return f"SIGSTOP to {task}"

    return fault


def attempts(run: Run) -> dict[str, int]:
    born = [fact for _, fact in run.world.facts if isinstance(fact, history.Born)]
    return {str(task): sum(fact.task == task for fact in born) for task in run.world.settings.tasks}


def test_a_chief_killed_again_and_again_takes_no_step_back() -> None:
    for seed in range(5):
        run = go(seed, [(second, faults.kill(CHIEF)) for second in (8.0, 14.0, 20.0)])
        assert run.exit_code == 0
        sources = [fact.fields["source"] for fact in journaled(run, "recovered") if fact.task == CHIEF]
        assert sources == ["fresh", "alive", "alive", "alive"]
        assert attempts(run) == {"chief": 4, "worker.0": 1, "worker.1": 1, "ps.0": 1, "ps.1": 1, "evaluator.0": 1}


def test_an_evaluator_frozen_forever_or_dying_costs_nothing() -> None:
    run = go(1, [(6.0, faults.kill(EVALUATOR)), (10.0, freeze_for_ever(EVALUATOR))])
    assert run.exit_code == 0
    assert attempts(run) == {"chief": 1, "worker.0": 1, "worker.1": 1, "ps.0": 1, "ps.1": 1, "evaluator.0": 2}
    assert journaled(run, "hang_detected") == []


def test_when_a_server_is_frozen_forever_only_the_server_is_blamed() -> None:
    """Its silence is found after 10 s. Chief and workers may wait for less than it takes to be served again."""
    for seed in range(3):
        run = go(seed, [(10.0, freeze_for_ever(SERVER))], hang_timeout_s=HANG_S * 0.7)
        assert run.exit_code == 0
        assert [str(fact.task) for fact in journaled(run, "hang_detected")] == ["ps.0"]
        causes = {str(fact.task): fact.fields["cause"] for fact in journaled(run, "exited") if fact.incarnation == 1}
        assert {causes[task] for task in ("chief", "worker.0", "worker.1")} == {"lost-peer"}


def late_messages(run: Run, rng: Random) -> str:
    run.world.network.weather = Weather(delay_s_max=3.0)
    run.world.disturb(60.0)
    return "messages are late, and overtake each other"


def test_all_tasks_of_a_gang_start_with_the_same_state_whichever_message_comes_first() -> None:
    for seed in range(12):
        kills = [(second, faults.kill(WORKER)) for second in (10.0, 22.0, 34.0)]
        run = go(seed, [(2.0, late_messages), *kills], "in step", import_s=0.1, restart="gang")
        assert run.exit_code == 0
        assert journaled(run, "hang_detected") == []
        assert [fact.fields["generation"] for fact in journaled(run, "gang_formed")][-1] == 4


# -- deliberate breaks -----------------------------------------------------------------------------------------
def _ends_only_the_first_of_a_gang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainerSupervisor, "end_with_gang", lambda self, why, now_s: [])
    patch.setattr(TrainerSupervisor, "is_gone", True)


def _restores_over_a_living_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedChief, "_leave_alive", lambda self: iter(()))


def _forgets_the_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Servers, "mark", lambda self, is_whole: None)


def _ends_the_servers_with_the_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EndOrder, "_turn", lambda self, running_on, now_s, followers: list(running_on))


def _blames_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "skip_time", lambda self, now_s: None)


BREAKS: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Plan, str]] = [
    ("i14", _ends_only_the_first_of_a_gang, [(8.0, faults.kill(WORKER))], "in step"),
    ("i15", _restores_over_a_living_model, [(12.0, faults.kill(CHIEF))], "served"),
    ("i15", _forgets_the_mark, [(12.0, faults.kill(CHIEF))], "served"),
    ("i16", _ends_the_servers_with_the_workers, [(12.0, faults.stop)], "served"),
]


@pytest.mark.parametrize(
    ("name", "breaks", "plan", "together"), BREAKS, ids=[f"{name}{breaks.__name__}" for name, breaks, _, _ in BREAKS]
)
def test_a_broken_invariant_of_several_tasks_is_reported(
    name: str, breaks: Callable[[pytest.MonkeyPatch], None], plan: Plan, together: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: dict[str, Any] = {"restart": "gang"} if together == "in step" else {}
    assert go(0, plan, together, **launch).exit_code is not None
    breaks(monkeypatch)
    assert_reported(f"{name}_", lambda seed: go(seed, plan, together, **launch))


def test_without_the_waiting_rule_tasks_that_wait_for_a_frozen_server_would_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _blames_who_waits(monkeypatch)
    run = go(0, [(10.0, freeze_for_ever(SERVER))], hang_timeout_s=HANG_S * 0.7)
    assert {str(fact.task) for fact in journaled(run, "hang_detected")} > {"ps.0"}
