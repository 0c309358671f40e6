"""A run of four tasks and three services works: each is a process of its own, and one more service
is one more row.

The deciding code is the same as for a run with one trainer: the watchdog's core and event loop, the
endpoints and the services.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec
import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.service_table import SERVICES, ServiceSpec
from procsv.watchdog.core.settings import Settings
from tests.simulation.model import faults, history
from tests.simulation.model.program import Program
from tests.simulation.model.run import Run
from tests.simulation.model.world import LAUNCH

METRICS = TaskId("metrics")
WORKERS = tuple(TaskId("worker", index) for index in range(3))
TASKS = (TRAINER, *WORKERS)
SEEDS = range(6)


@pytest.fixture(autouse=True)
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    row = ServiceSpec(METRICS, "tests.simulation.model.services", is_critical=False, keeps_state=False)
    monkeypatch.setitem(SERVICES, METRICS, row)
    return iter(())


def go(seed: int, plan: list[tuple[float, faults.Fault]], restart: Literal["auto", "gang"] = "auto") -> Run:
    settings = Settings(msgspec.structs.replace(LAUNCH, standby="off", restart=restart), tasks=TASKS)
    return Run(seed, Program(steps=60, standby=False), plan, settings=settings).go()


def incarnations(run: Run, task: TaskId) -> list[int]:
    return [fact.incarnation for _, fact in run.world.facts if isinstance(fact, history.Born) and fact.task == task]


def crash(task: TaskId) -> faults.Fault:
    def fault(run: Run, rng: Random) -> str:
        if (process := run.world.find(task)) is not None:
            process.die(Exit(1, None), "program")
        return f"{task} ends"

    return fault


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_of_four_tasks_and_three_services_completes(seed: int) -> None:
    run = go(seed, [])
    assert run.exit_code == 0
    assert {task: incarnations(run, task) for task in (*TASKS, *SERVICES)} == {
        task: [1] for task in (*TASKS, CHECKPOINT, SUMMARY, METRICS)
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("task", [*TASKS, *SERVICES, METRICS], ids=str)
def test_killing_one_process_restarts_only_that_one(seed: int, task: TaskId) -> None:
    run = go(seed, [(6.0, faults.kill(task)), (12.0, faults.kill(task))])
    assert run.exit_code == 0
    assert incarnations(run, task) == [1, 2, 3]
    assert all(incarnations(run, other) == [1] for other in (*TASKS, *SERVICES) if other != task)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tasks_newer_attempt_silences_no_other_task(seed: int) -> None:
    """The last worker has had twice the attempts of the others, which are still heard."""
    run = go(seed, [(2.0, faults.kill(WORKERS[2])), (4.0, faults.kill(WORKERS[2])), (8.0, faults.kill(WORKERS[0]))])
    ready = [
        (fact.task, fact.incarnation)
        for _, fact in run.world.facts
        if isinstance(fact, history.Journaled) and fact.event == "ready"
    ]
    assert {(TRAINER, 1), (WORKERS[0], 1), (WORKERS[0], 2), (WORKERS[1], 1)} <= set(ready)
    assert run.exit_code == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_resumes_after_a_kill_of_the_watchdog(seed: int) -> None:
    run = go(seed, [(8.0, faults.kill(WATCHDOG))])
    assert run.exit_code == 0
    assert all(len(incarnations(run, task)) == 2 for task in TASKS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trainer_never_resumes_from_another_tasks_snapshot(seed: int) -> None:
    run = go(seed, [(6.0, faults.kill(WORKERS[1])), (7.0, faults.kill(TRAINER)), (12.0, faults.kill(WATCHDOG))])
    resumed = [
        fact.fields["step"]
        for _, fact in run.world.facts
        if isinstance(fact, history.Journaled) and fact.event == "recovered"
    ]
    assert run.exit_code == 0
    assert resumed
    assert all(step <= 60 for step in resumed), "the workers' snapshots have far higher steps"


def test_the_run_goes_on_without_a_non_critical_service() -> None:
    run = go(0, [(second, crash(METRICS)) for second in (2.0, 5.0, 9.0, 14.0, 20.0, 27.0)])
    assert run.exit_code == 0
    assert incarnations(run, METRICS) == [1, 2, 3, 4, 5], "it is not started again"
    assert incarnations(run, TRAINER) == [1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_gang_restarts_as_one_and_no_member_meets_one_of_the_previous_generation(seed: int, task: TaskId) -> None:
    run = go(seed, [(6.0, faults.kill(task)), (6.1, faults.kill(WORKERS[1])), (12.0, faults.kill(task))], "gang")
    assert run.exit_code == 0
    counts = {other: len(incarnations(run, other)) for other in TASKS}
    assert counts[TRAINER] in (3, 4), "the second kill hits the old gang, or the new one"
    assert set(counts.values()) == {counts[TRAINER]}
    for generation in range(2, counts[TRAINER] + 1):
        assert first_born(run, generation) > last_gone(run, generation - 1)


def first_born(run: Run, incarnation: int) -> int:
    """Return the index of the first start in that generation."""
    facts = [(number, fact) for number, (_, fact) in enumerate(run.world.facts) if isinstance(fact, history.Born)]
    return min(number for number, fact in facts if fact.task in TASKS and fact.incarnation == incarnation)


def last_gone(run: Run, incarnation: int) -> int:
    """Return the index of the last end in that generation."""
    facts = [(number, fact) for number, (_, fact) in enumerate(run.world.facts) if isinstance(fact, history.Died)]
    ends = [number for number, fact in facts if fact.task in TASKS and fact.incarnation == incarnation]
    assert len(ends) == len(TASKS)
    return max(ends)
