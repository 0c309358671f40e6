"""Choose the victims of a machine fault and its duration, with the effects that several kinds of faults share."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.model.machines.fleet import RECOVERY_S

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.run import FleetRun
    from tests.simulation.model.machines.scheduler import Slot

SHORT_S, LONG_S = (0.5, 8.0), (8.0, 150.0)  # durations that end before a peer timeout, or only after it


def running_slots(run: FleetRun) -> list[Slot]:
    """Return the running launches of the job's newest start."""
    return [slot for slot in run.fleet.scheduler.attempt.slots if slot.launch is not None and not slot.launch.is_dead]


def draw_slot(run: FleetRun, rng: Random) -> Slot | None:
    """Draw one, the coordinator's as likely as any other."""
    slots = running_slots(run)
    if not slots:
        return None
    return slots[0] if rng.random() < 0.35 else rng.choice(slots)


def draw_member(run: FleetRun, rng: Random) -> Slot | None:
    slots = [slot for slot in running_slots(run) if slot.rank]
    return rng.choice(slots) if slots else None


def draw_seconds(rng: Random) -> float:
    return rng.uniform(*(SHORT_S if rng.random() < 0.5 else LONG_S))


def all_but(run: FleetRun, world: MachineWorld) -> list[str]:
    return [other.name for other in run.fleet.worlds if other is not world]


def cut(run: FleetRun, world: MachineWorld, others: list[str], seconds: float, ways: str = "both") -> None:
    for other in others:
        if ways != "in":
            run.fleet.links.cut(world.name, other, seconds)
        if ways != "out":
            run.fleet.links.cut(other, world.name, seconds)
    run.fleet.disturb(seconds + RECOVERY_S)
