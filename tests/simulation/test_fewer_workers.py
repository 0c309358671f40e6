"""In simulated runs a worker that fails at every start is given up, and --min-workers lets the rest go on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from procsv.base.identity import TaskId
from procsv.watchdog.core.restarts import restart_table
from procsv.watchdog.core.settings import Settings
from tests.simulation.machine_schedules import Told, lose
from tests.simulation.machine_schedules import go as go_on_machines
from tests.simulation.model import history
from tests.simulation.model.group import draw
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.run import FleetRun
from tests.simulation.model.machines.run import draw_run as draw_fleet_run
from tests.simulation.model.program import Program, ProgramError
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.run import Run, journaled, run_of_tasks
from tests.simulation.model.world import LAUNCH
from tests.simulation.reported import assert_reported

SEEDS = 40
BAD = TaskId("worker", 1)
ERROR = ProgramError("OSError", "no such device")


def break_one(run: Run, rng: Random) -> str:
    process = run.world.find(BAD)
    assert isinstance(process, ProgramProcess)
    run.world.broken[BAD] = ERROR
    process.doom(ERROR)
    return f"{BAD} is broken"


def break_on_its_machine(run: FleetRun, rng: Random) -> str:
    run.fleet.broken[BAD] = ERROR
    for world in run.fleet.worlds:
        if isinstance(process := world.find(BAD), ProgramProcess):
            process.doom(ERROR)
    return f"{BAD} is broken"


def go(seed: int, least: int | None) -> Run:
    settings = msgspec.structs.replace(LAUNCH, workers=3, ps=1, standby="off", min_workers=least)
    program = Program(steps=200, together="served")
    return Run(seed, program, [(10.0, break_one)], settings=Settings(settings, tasks=settings.tasks)).go()


def go_far(seed: int, least: int | None, *more: Any, steps: int = 250) -> Told:
    return go_on_machines(seed, [(15.0, break_on_its_machine), *more], workers=3, min_workers=least, steps=steps)


def codes(run: Run) -> list[int | None]:
    return [fact.exit_code for _, fact in run.world.facts if isinstance(fact, history.LaunchEnded)]


@pytest.mark.parametrize("seed", range(4))
def test_the_others_train_on_without_a_worker_that_is_given_up(seed: int) -> None:
    run = go(seed, 2)
    assert codes(run) == [0]
    (given_up,) = journaled(run, "task_given_up")
    assert (given_up.task, given_up.fields["workers"]) == (BAD, 2)
    born = [fact.task for _, fact in run.world.facts if isinstance(fact, history.Born) and fact.task.runs_program]
    assert all(born.count(task) == 1 for task in set(born) - {BAD}), "nobody else was started again"


@pytest.mark.parametrize("least", [None, 3])
def test_with_too_few_workers_left_the_run_ends_and_the_next_launch_tries_again(least: int | None) -> None:
    run = go(1, least)
    assert codes(run) == [70, 0]
    assert not journaled(run, "task_given_up")


@pytest.mark.parametrize("seed", range(3))
def test_on_several_machines_the_rest_goes_on_without_a_worker_that_is_given_up(seed: int) -> None:
    told = go_far(seed, 2)
    assert set(told.codes) == {0}
    assert len(told.run.fleet.scheduler.attempts) == 1
    (given_up,) = told.journaled("task_given_up")
    assert given_up.task == BAD
    born = [fact.task for fact in told.of(history.Born) if fact.task.runs_program]
    assert all(born.count(task) == 1 for task in set(born) - {BAD})


def test_on_several_machines_too_the_run_ends_with_too_few_workers_left() -> None:
    told = go_far(1, 3)
    assert told.codes.count(70) == len(told.run.fleet.tasks), "all launches of that start"
    assert told.codes.count(0) == len(told.run.fleet.tasks), "and of the next one, for which it was mended"


def test_losing_the_machine_of_a_worker_that_was_given_up_is_losing_a_member() -> None:
    told = go_far(1, 2, (35.0, lose(2)), steps=600)
    assert told.run.fleet.tasks[2] == BAD
    assert told.journaled("task_given_up")
    assert [fact.task for fact in told.journaled("member_lost")] == [BAD]
    assert len(told.of(facts.Formed)) == 2


def test_runs_that_can_do_without_workers_are_drawn_and_have_broken_workers() -> None:
    runs = [run_of_tasks(seed) for seed in range(SEEDS)]
    able = [run for run in runs if run.world.settings.launch.min_workers is not None]
    assert any(fault is draw.break_worker for run in able for _, fault in run.plan)
    fleets = [draw_fleet_run(seed) for seed in range(SEEDS)]
    assert any(fleet.fleet.settings.min_workers is not None for fleet in fleets)


# -- deliberate breaks -----------------------------------------------------------------------------------------
def _ends_with_any(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restart_table, "indispensable", lambda tasks, given_up, least: list(given_up))


def _does_without_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restart_table, "indispensable", lambda tasks, given_up, least: [])


def _miscounts(patch: pytest.MonkeyPatch) -> None:
    left = restart_table.workers_left
    patch.setattr(restart_table, "workers_left", lambda tasks, given_up: left(tasks, given_up) + 1)


BREAKS: list[tuple[Callable[[pytest.MonkeyPatch], None], int | None]] = [
    (_ends_with_any, 2),
    (_does_without_all, None),
    (_does_without_all, 3),
    (_miscounts, 3),
]
GOES: dict[str, Callable[[int, int | None], object]] = {"one": go, "several": go_far}


@pytest.mark.parametrize("machines", GOES)
@pytest.mark.parametrize(("breaks", "least"), BREAKS, ids=[f"{breaks.__name__}_{least}" for breaks, least in BREAKS])
def test_a_wrong_count_of_workers_is_reported(
    breaks: Callable[[pytest.MonkeyPatch], None], least: int | None, machines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert_reported("i18_enough_workers_go_on", lambda seed: GOES[machines](seed, least))
