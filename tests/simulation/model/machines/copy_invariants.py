"""The invariants of the copy of the chief's memory: it is whole or absent, and as new as promised
when one machine is lost.

They have the form of invariants.py. What must be covered at a loss follows from what the chief had
published, never from what was kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from procsv.base.identity import CHECKPOINT, WATCHDOG
from procsv.ipc.shm.heartbeat import Phase
from tests.simulation.model import history
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.fleet import Fleet
from tests.simulation.model.machines.machine_world import MachineWorld
from tests.simulation.model.program import value_at
from tests.simulation.model.trainer import Trainer

BYTES_PER_S = 64 * 2**20  # the least speed of a copy if the network allows it,
WAY_SHARE = 0.75  # and the share of the network if it does not
ORDER_S = 4.0  # from the start of a run until the keeper of the copy has its order
LINGER_S = 5.0  # while delayed messages are still in transit
SLACK_S = 0.5  # for questions, answers and loop turns,
CALM_SLACK_S = 0.1  # less after this many undisturbed copies
CALM_COPIES = 3


@dataclass(slots=True)
class Published:
    at_s: float
    captured_s: float
    step: int


@dataclass(slots=True)
class Claim:
    """What the successor of a lost coordinator must resume from, if nothing else happens until then."""

    lost_s: float
    covered: Published | None
    keeper: str
    published: list[Published]
    limit_s: float  # training that may be lost with it; inf: unknown


@dataclass(slots=True)
class Copies:
    """The account of the copies."""

    run: str = ""
    formed_s: float = math.inf
    machines: tuple[str, ...] = ()  # the machines of the run's tasks, the coordinator's first
    keeper: str = ""  # the machine that keeps the copy
    published: list[Published] = field(default_factory=list)  # published by the chief of that run
    disturbed_s: float = -math.inf  # when the last fault was over
    kept_s: float = -math.inf  # when the last copy arrived
    took_s: float = 0.0  # and how long it travelled: the next ones may take as long
    calm_copies: int = 0  # copies since the end of the last fault or the chief's start
    claim: Claim | None = None
    behind_s: list[float] = field(default_factory=list)  # for each checked loss: the training lost
    limits_s: list[float] = field(default_factory=list)  # and the most that might have been lost


def i17_copies_are_whole(fleet: Fleet, copies: Copies, fact: Any, world: MachineWorld) -> str:
    """No half copy, and none damaged in transit, is ever kept or used."""
    if isinstance(fact, facts.Copied) and fact.value != value_at(fact.step):
        return f"{fact.machine} takes what it has of step {fact.step} for whole"
    return ""


def i17_copies_are_new(fleet: Fleet, copies: Copies, fact: Any, world: MachineWorld) -> str:
    """When only the coordinator's machine is lost, the copy has what was published before the last
    one began to travel.

    If snapshots are small for the network, the loss is at most the interval that the chief was
    given.
    """
    now_s = fleet.clock.now_s
    match fact:
        case facts.Formed(_, run, _, launches):
            _forget_elsewhere(copies, {machine for _, _, machine in launches})
            ranked = sorted((rank, machine) for task, rank, machine in launches if task in fleet.tasks)
            copies.run, copies.formed_s, copies.machines = run, now_s, tuple(machine for _, machine in ranked)
            copies.keeper = copies.machines[1] if len(ranked) > 1 else ""
            copies.published, copies.kept_s, copies.calm_copies = [], -math.inf, 0
        case history.Published(run, _, step, captured_s) if run == copies.run:
            age_s = world.clock.now_s - captured_s
            copies.published.append(Published(now_s, now_s - age_s, step))
        case facts.Copied(machine, run) if run == copies.run and machine in copies.machines[1:]:
            copies.kept_s, copies.keeper, copies.took_s = now_s, machine, fact.seconds
            copies.calm_copies = copies.calm_copies + 1 if now_s > copies.disturbed_s else 0
        case facts.Disturbed(seconds):
            _disturb(copies, now_s + seconds + LINGER_S)
        case history.Died(task, by="outside") if task in (WATCHDOG, CHECKPOINT):
            _disturb(copies, now_s)
        case facts.MachineLost():
            claim = _claim(fleet, copies, world)
            _disturb(copies, now_s)
            copies.claim = claim
        case history.Restored() if copies.claim is not None and isinstance(world.launch_here, CoordinatorLaunch):
            claim, copies.claim, copies.calm_copies = copies.claim, None, 0
            return _judge(copies, claim, fact.step)
        case history.Restored() if isinstance(world.launch_here, CoordinatorLaunch):
            copies.calm_copies = 0
    return ""


def _disturb(copies: Copies, until_s: float) -> None:
    copies.disturbed_s, copies.claim, copies.calm_copies = max(copies.disturbed_s, until_s), None, 0


def _forget_elsewhere(copies: Copies, machines: set[str]) -> None:
    """The scheduler may not give the machine with the copy to the next start."""
    if copies.claim is not None and copies.claim.keeper not in machines:
        copies.claim = None


def _claim(fleet: Fleet, copies: Copies, world: MachineWorld) -> Claim | None:
    now_s, launch = fleet.clock.now_s, world.launch_here
    is_ours = isinstance(launch, CoordinatorLaunch) and launch.run == copies.run and launch.is_serving
    is_calm = copies.disturbed_s < max(copies.formed_s, copies.kept_s)
    if not is_ours or not is_calm or not copies.keeper:
        return None
    old_s = now_s - late_s(fleet, copies.took_s)
    if old_s < copies.formed_s + ORDER_S:
        return None
    published = [one for one in copies.published if one.at_s <= now_s]
    covered = [one for one in published if one.at_s <= old_s]
    limit_s = _limit_s(fleet, copies, world)
    return Claim(now_s, covered[-1], copies.keeper, published, limit_s) if covered else None


def _limit_s(fleet: Fleet, copies: Copies, world: MachineWorld) -> float:
    """Return how much training this machine's loss may cost: an interval, if copying and a step
    leave half of it and slots suffice.
    """
    program, chief = fleet.program, world.find(fleet.tasks[0])
    if not isinstance(chief, Trainer) or chief.phase is not Phase.STEP or copies.calm_copies < CALM_COPIES:
        return math.inf
    travel_s = max(program.size / min(BYTES_PER_S, WAY_SHARE * fleet.bytes_per_s), copies.took_s) + CALM_SLACK_S
    is_small = program.slots > 2 and 2 * program.copy_s + travel_s + program.step_s <= program.snapshot_s / 2
    return program.snapshot_s if is_small else math.inf


def late_s(fleet: Fleet, took_s: float = 0.0) -> float:
    """Return the longest time from a snapshot's publication until it is whole in another machine's
    memory.

    `took_s` is the last copy's time, which may have shown a slower network.
    """
    travel_s = max(fleet.program.size / min(BYTES_PER_S, WAY_SHARE * fleet.bytes_per_s), took_s)
    return 2 * travel_s + SLACK_S


def _judge(copies: Copies, claim: Claim, step: int) -> str:
    assert claim.covered is not None
    if step < claim.covered.step:
        age_s = claim.lost_s - claim.covered.at_s
        return f"step {step} is all that is left, although step {claim.covered.step} was in memory {age_s:.2f} s before the loss"
    known = [one for one in claim.published if one.step <= step]
    behind_s = claim.lost_s - known[-1].captured_s if known else 0.0
    copies.behind_s.append(behind_s)
    copies.limits_s.append(claim.limit_s)
    if behind_s > claim.limit_s:
        return f"{behind_s:.2f} s of training are lost, and the interval is {claim.limit_s:.2f} s"
    return ""
