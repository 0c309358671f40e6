"""The invariant of workers that a run on several machines can do without, over all runs, like
group/invariants.py.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.model import history
from tests.simulation.model.group.fewer import GivenUp
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.fleet import Fleet
from tests.simulation.model.machines.machine_world import MachineWorld
from tests.simulation.model.machines.member import MemberLaunch


def i18_enough_workers_go_on(fleet: Fleet, given_up: dict[str, GivenUp], fact: Any, world: MachineWorld) -> str:
    """Whether a worker is given up with the run or without it depends on how many are left; it
    stays down for that run.
    """
    match fact:
        case facts.Formed(_, run):
            is_in_step = fleet.program.together == "in step" or fleet.settings.restart == "gang"
            given_up[run] = GivenUp(fleet.settings, fleet.tasks, in_step=is_in_step)
        case facts.CoordinatorEnds(_, run, exit_code, is_stopped=False):
            return given_up[run].check(history.LaunchEnded(exit_code, keep_memory=False))
        case history.Journaled() | history.SpawnAsked() if (account := given_up.get(_run_of(world))) is not None:
            return account.check(fact)
    return ""


def _run_of(world: MachineWorld) -> str:
    launch = world.launch_here
    if isinstance(launch, CoordinatorLaunch):
        return launch.run
    return launch.term.run if isinstance(launch, MemberLaunch) and launch.term is not None else ""
