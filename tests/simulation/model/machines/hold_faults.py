"""What befalls machines at the moment at which all tasks stand for the chief."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.model.machines.fleet import RECOVERY_S
from tests.simulation.model.machines.victims import SHORT_S, all_but, cut, running_slots
from tests.simulation.model.processes import KILLED

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.run import FleetRun


def strike_hold(run: FleetRun, rng: Random) -> str:
    """Something befalls the chief, or one that stands for it, at the next moment at which all stand."""
    slots = running_slots(run)
    if not slots or slots[0].rank or not run.fleet.holds:
        return ""
    world = slots[0].world if rng.random() < 0.6 else rng.choice(slots).world
    kind, seconds = rng.choice(["killed", "stopped", "frozen", "suspended", "cut off", "lost"]), rng.uniform(*SHORT_S)
    seconds *= rng.choice([0.02, 1.0])

    def strike() -> None:
        run.fleet.say(f"{world.name} is {kind} in a hold, for {seconds:.2f} s")
        run.fleet.disturb(seconds + RECOVERY_S)
        befall(run, world, kind, seconds)

    slots[0].world.at_hold = strike
    return f"{world.name} is to be {kind} in the next hold"


def befall(run: FleetRun, world: MachineWorld, kind: str, seconds: float) -> None:
    """That machine, or its task."""
    task = next((one for one in world.processes.values() if one.task.runs_program), None)
    if kind == "killed" and task is not None:
        task.die(KILLED, "outside")
    elif kind == "stopped" and task is not None:
        task.freeze(seconds)
    elif kind == "lost":
        world.lose_power()
    elif kind == "cut off":
        cut(run, world, all_but(run, world), seconds)
    elif kind in ("frozen", "suspended"):
        world.freeze(seconds, with_clock=kind == "suspended")
        run.fleet.suspended(world, seconds)
