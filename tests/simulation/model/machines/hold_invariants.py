"""The invariants of holds over machines: what is said to be of one step is, and nobody stands for long.

As invariants.py has the others.  The steps are counted where they are made, on the servers.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.model.machines import facts
from tests.simulation.model.machines.fleet import Fleet
from tests.simulation.model.machines.machine_world import MachineWorld

GATHER_S_MAX, CAPTURE_S_MAX = 2.05, 0.1  # that a task stands until all do, and while it is captured: docs/machines.md
TURN_S = 0.001  # of a process that goes on


def i19_held_is_of_one_step(fleet: Fleet, fact: Any, world: MachineWorld) -> str:
    """A snapshot that is not said to be mixed is of one step: no task was in one while it was captured."""
    if not isinstance(fact, facts.CapturedHeld) or fact.is_mixed:
        return ""
    met = world.steps.met(fact.begun_s, fact.ended_s)
    return f"what was captured from {fact.begun_s:.3f} to {fact.ended_s:.3f} s has met {met}" if met else ""


def i19_nobody_stands_for_long(fleet: Fleet, fact: Any, world: MachineWorld) -> str:
    """No step waits longer than a task is held, by its own clock."""
    if isinstance(fact, facts.Stood) and fact.seconds > GATHER_S_MAX + CAPTURE_S_MAX + TURN_S:
        return f"a step of {fact.task} has waited for {fact.seconds:.3f} s"
    return ""
