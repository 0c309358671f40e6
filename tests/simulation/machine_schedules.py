"""Single schedules of faults on several machines, and readers of what happened, for tests of one thing each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tests.simulation.model import history
from tests.simulation.model.machines import facts, faults
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.draw import Drawn
from tests.simulation.model.machines.links import SCHEDULER
from tests.simulation.model.machines.run import FleetRun
from tests.simulation.model.machines.scheduler import Slot
from tests.simulation.model.machines.victims import cut
from tests.simulation.model.processes import KILLED
from tests.simulation.model.program import Program
from tests.simulation.model.world import LAUNCH
from tests.simulation.reported import assert_reported

Plan = list[tuple[float, faults.Fault]]
Break = Callable[[pytest.MonkeyPatch], None]  # replaces the right code with a faulty version
Breaks = list[
    tuple[str, Break, Plan, dict[str, Any]]
]  # the invariant that is broken, how, and the run in which that shows


class Told:
    """What has happened in a run, by kind."""

    def __init__(self, run: FleetRun) -> None:
        self.run = run
        self.facts: list[Any] = []
        run.fleet.watchers.append(lambda fact, world: self.facts.append(fact))

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def journaled(self, event: str) -> list[history.Journaled]:
        return [fact for fact in self.of(history.Journaled) if fact.event == event]

    @property
    def codes(self) -> list[int]:
        return [left.exit_code for left in self.of(facts.Left) if not left.again]


def prepare(
    seed: int,
    plan: Plan,
    together: str = "served",
    spares: int = 0,
    steps: int = 0,
    step_s: float = 0.5,
    save_secs: float = 3.0,
    names_tasks: bool = False,
    revives_s: float | None = None,
    size: int = 1 << 16,
    bytes_per_s: float = 1e9,
    slots: int = 3,
    **launch: Any,
) -> Told:
    counts = {"workers": 2, "ps": 1} if together == "served" else {"workers": 2}
    settings = msgspec.structs.replace(LAUNCH, **{**counts, "standby": "off", "coordinator_timeout_s": 120.0, **launch})
    steps = steps or (150 if together == "served" else 60)
    program = Program(steps=steps, step_s=step_s, save_secs=save_secs, size=size, slots=slots, together=together)  # type: ignore[arg-type]
    drawn = Drawn(program, settings, spares, 20.0, 2.0, names_tasks, revives_s, bytes_per_s)
    return Told(FleetRun(seed, drawn, list(plan)))


def go(seed: int, plan: Plan, **how: Any) -> Told:
    told = prepare(seed, plan, **how)
    told.run.go()
    return told


def each_of(breaks: Breaks) -> pytest.MarkDecorator:
    """A test of each."""
    names = [f"{name}{broken.__name__}" for name, broken, _, _ in breaks]
    return pytest.mark.parametrize(("name", "breaks", "plan", "how"), breaks, ids=names)


def assert_break_is_reported(
    name: str, breaks: Break, plan: Plan, how: dict[str, Any], patch: pytest.MonkeyPatch
) -> None:
    """The run is over without it, and with it one of some seeds reports an invariant whose name begins so."""
    assert go(0, plan, **how).run.is_over
    breaks(patch)
    assert_reported(name, lambda seed: go(seed, [(after_s + 0.23 * seed, fault) for after_s, fault in plan], **how))


def slots(run: FleetRun) -> list[Slot]:
    return run.fleet.scheduler.attempt.slots


def lose(rank: int) -> faults.Fault:
    def fault(run: FleetRun, rng: Random) -> str:
        slots(run)[rank].world.lose_power()
        return f"the machine of launch {rank} is gone"

    return fault


def suspend(rank: int) -> faults.Fault:
    def fault(run: FleetRun, rng: Random) -> str:
        world = slots(run)[rank].world
        world.freeze(4.0, with_clock=True)
        run.fleet.suspended(world, 4.0)
        return f"the machine of launch {rank} is suspended"

    return fault


def strand(run: FleetRun, rng: Random) -> str:
    """The coordinator's machine stands still, for longer than its lease lasts, and goes on."""
    world, seconds = slots(run)[0].world, rng.uniform(120.0, 200.0)
    world.freeze(seconds)
    cut(run, world, [SCHEDULER], seconds)
    return f"{world.name} stands still for {seconds:.0f} s"


def strand_in_renewal(run: FleetRun, rng: Random) -> str:
    """The same, between a look at its lease and the renewal of that."""
    launch = slots(run)[0].launch
    assert isinstance(launch, CoordinatorLaunch)
    launch.keeper.stand_still_behind_look()
    return strand(run, rng)


def kill(rank: int) -> faults.Fault:
    def fault(run: FleetRun, rng: Random) -> str:
        launch = slots(run)[rank].launch
        assert launch is not None
        for child in launch.children:
            if child.task.runs_program:
                child.die(KILLED, "outside")
        return f"SIGKILL to the task of launch {rank}"

    return fault


def kill_launch(rank: int) -> faults.Fault:
    def fault(run: FleetRun, rng: Random) -> str:
        launch = slots(run)[rank].launch
        assert launch is not None
        launch.die(KILLED, "outside")
        return f"SIGKILL to launch {rank}"

    return fault


def stop_all(run: FleetRun, rng: Random) -> str:
    run.fleet.scheduler.notify([slots(run)[1]])
    return "a notice to a member"
