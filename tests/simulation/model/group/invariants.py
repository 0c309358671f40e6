"""The invariants of several tasks, I14 to I16, over the history of a simulated world, in the form
of invariants.py.

(I13, one coordinator at a time, needs several machines.)
"""

from __future__ import annotations

from procsv.base.cluster import PS
from procsv.base.identity import WATCHDOG
from procsv.watchdog.core.events import LogdirTaken, StopAsked
from tests.simulation.model import history
from tests.simulation.model.account import Account
from tests.simulation.model.group.fewer import GivenUp
from tests.simulation.model.world import World


def i14_one_generation(world: World, account: Account, fact: history.Fact) -> str:
    """No task of a gang makes a step after the next generation has formed, or meets a task of it.
    All are in one state.
    """
    match fact:
        case history.Joined(task, ring, older) if older and world.settings.launch.restart == "gang":
            return f"{task} has joined generation {ring} while {', '.join(older)} of an older one lives"
        case history.Stepped(task, ring, state):
            if ring < account.ring:
                return f"{task} of generation {ring} makes a step after generation {account.ring} has"
            if ring > account.ring:
                account.ring, account.ring_states = ring, {}
            if account.ring_states.setdefault(state[0], state) != state:
                return f"{task} is at step {state[0]} with a state that another of its gang does not have"
    return ""


def i15_living_model_stays(world: World, account: Account, fact: history.Fact) -> str:
    """A living model is never overwritten: unless a server was lost by a fault of its own, no step is undone."""
    match fact:
        case history.Died(task, by=by, was_stuck=was_stuck) if task.role == PS:
            if by in ("outside", "power", "program") or was_stuck or fact.was_orphan or _is_ending(world):
                account.has_model = False
        case history.Filled(_, living_step, step):
            if account.has_model and step < living_step:
                return f"step {step} was restored over a living model at step {living_step}"
            account.has_model = False
        case history.Whole():
            account.has_model = True
    return ""


def _is_ending(world: World) -> bool:
    core = world.watchdog.core if world.watchdog is not None else None
    return core is None or core.is_ending


def i18_enough_workers_go_on(world: World, account: Account, fact: history.Fact) -> str:
    """Whether a worker is given up with the run or without it depends on how many are left; it
    stays down for the launch.
    """
    if isinstance(fact, history.Born) and fact.task == WATCHDOG:
        is_in_step = world.program.together == "in step" or world.settings.launch.restart == "gang"
        account.given_up = GivenUp(world.settings.launch, world.settings.tasks, in_step=is_in_step)
    return account.given_up.check(fact) if account.given_up is not None else ""


def i16_servers_end_last(world: World, account: Account, fact: history.Fact) -> str:
    """A server never ends before the chief has saved its last step: it outlives the chief, unless
    all end at once.
    """
    match fact:
        case history.Born(task) if task == world.chief:
            account.ends_at_once = False
        case history.CoreActed(StopAsked(now=True) | LogdirTaken()):
            account.ends_at_once = True
        case history.Died(task, by=("watchdog" | "itself")) if task.role == PS and not fact.was_orphan:
            chief = world.find(world.chief)
            if chief is not None and not (fact.was_stuck or account.ends_at_once or chief.is_stuck):
                return f"{task} was ended while {world.chief} {chief.incarnation} is alive"
    return ""
