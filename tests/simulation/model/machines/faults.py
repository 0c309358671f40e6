"""Faults of machines and of the network between them, drawn at random. Each describes itself for the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from procsv.base.cluster import WORKER
from procsv.base.identity import CHECKPOINT
from procsv.base.service_table import SERVICES
from tests.simulation.model.faults import draw_plan
from tests.simulation.model.machines.coordinator import CoordinatorLaunch
from tests.simulation.model.machines.fleet import RECOVERY_S
from tests.simulation.model.machines.links import DEAD_AFTER_S, SCHEDULER, STORAGE
from tests.simulation.model.machines.victims import (
    LONG_S,
    all_but,
    cut,
    draw_member,
    draw_seconds,
    draw_slot,
    running_slots,
)
from tests.simulation.model.processes import KILLED
from tests.simulation.model.program import ProgramError
from tests.simulation.model.program_process import ProgramProcess

if TYPE_CHECKING:
    from tests.simulation.model.machines.run import FleetRun
    from tests.simulation.model.machines.scheduler import Slot

SINGLE_CHANCE = 0.15

Fault = Callable[["FleetRun", Random], str]


def cut_link(run: FleetRun, rng: Random) -> str:
    """Cut the link between the coordinator's machine and another one."""
    slot, slots = draw_member(run, rng), running_slots(run)
    if slot is None:
        return ""
    seconds = draw_seconds(rng)
    cut(run, slots[0].world, [slot.world.name], seconds)
    return f"no packet between {slots[0].world.name} and {slot.world.name} for {seconds:.1f} s"


def cut_one_way(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    seconds, way = draw_seconds(rng), rng.choice(["in", "out"])
    cut(run, slot.world, all_but(run, slot.world), seconds, way)
    return f"packets of {slot.world.name} do not come {way} for {seconds:.1f} s"


def cut_off(run: FleetRun, rng: Random) -> str:
    """Cut one machine off from all others and from the scheduler. The storage may be another network."""
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    seconds, sees_storage = draw_seconds(rng), rng.random() < 0.5
    others = [*all_but(run, slot.world), SCHEDULER, *([] if sees_storage else [STORAGE])]
    cut(run, slot.world, others, seconds)
    return f"{slot.world.name} is cut off for {seconds:.1f} s{', but sees the logdir' * sees_storage}"


def strand_coordinator(run: FleetRun, rng: Random) -> str:
    """Cut off or freeze the coordinator's machine beyond its lease, while the scheduler starts
    another coordinator.
    """
    slots = running_slots(run)
    if not slots or slots[0].rank:
        return ""
    world, seconds, kind = (
        slots[0].world,
        rng.uniform(60.0, 400.0),
        rng.choice(["cut off", "frozen", "without storage"]),
    )
    if kind == "frozen":
        world.freeze(seconds)
    if kind != "frozen" or rng.random() < 0.5:
        ends_s = seconds * rng.uniform(0.5, 1.2)
        cut(run, world, [*all_but(run, world), SCHEDULER], ends_s)
    if kind == "without storage":
        cut(run, world, [STORAGE], seconds)
    cut(run, world, [SCHEDULER], seconds)
    return f"{world.name} is {kind} for {seconds:.1f} s, with the coordinator"


def freeze_in_commit(run: FleetRun, rng: Random) -> str:
    """Freeze the coordinator's machine after its last look at the lease, somewhere in a commit,
    while another starts.
    """
    slots = running_slots(run)
    if not slots or slots[0].rank:
        return ""
    world, seconds, step = slots[0].world, rng.uniform(60.0, 300.0), rng.randrange(20)

    def strike() -> None:
        run.fleet.say(f"{world.name} stands still for {seconds:.1f} s in its commit, at step {step}")
        world.freeze(seconds)
        cut(run, world, [SCHEDULER], seconds)
        run.fleet.clock.after(seconds, lambda: run.fleet.links.break_connections(lambda a, b: world.name in (a, b)))

    world.at_commit = (step, strike)
    return f"{world.name} is to stand still in its next commit"


def freeze_in_renewal(run: FleetRun, rng: Random) -> str:
    """Freeze the coordinator's machine between a look at its lease and the renewal, while another one starts."""
    slots = running_slots(run)
    launch = slots[0].launch if slots and not slots[0].rank else None
    if not isinstance(launch, CoordinatorLaunch) or not launch.is_serving:
        return ""
    world, seconds = slots[0].world, rng.uniform(60.0, 300.0)
    launch.keeper.stand_still_behind_look()
    world.freeze(seconds)
    cut(run, world, [SCHEDULER], seconds)
    run.fleet.clock.after(seconds, lambda: run.fleet.links.break_connections(lambda a, b: world.name in (a, b)))
    return f"{world.name} stands still for {seconds:.1f} s in the renewal of its lease"


def lose_coordinator(run: FleetRun, rng: Random) -> str:
    """Lose its launch or its machine, at times again as soon as it is back, perhaps with a fault of
    a member meanwhile.
    """
    slots = running_slots(run)
    if not slots or slots[0].rank:
        return ""
    said = [_lose(run, slots[0], rng)]
    back_s = run.fleet.scheduler.revives_s
    if back_s is not None and rng.random() < 0.4:
        run.fleet.clock.after(back_s + rng.uniform(0.0, 40.0), lambda: _lose_again(run, rng))
    if rng.random() < 0.5:
        said.append(
            rng.choice([cut_one_way, cut_off, freeze, lose_machine, kill_task, kill_launch, slow_link])(run, rng)
        )
    return "; ".join(filter(None, said))


def lose_memory(run: FleetRun, rng: Random) -> str:
    """Lose the coordinator's machine with the chief's memory."""
    slots = running_slots(run)
    if not slots or slots[0].rank:
        return ""
    run.fleet.allow(RECOVERY_S)
    slots[0].world.lose_power()
    return f"{slots[0].world.name} is gone, with the coordinator and the chief's memory"


def _lose(run: FleetRun, slot: Slot, rng: Random) -> str:
    run.fleet.allow(RECOVERY_S)
    if rng.random() < 0.4:
        slot.world.lose_power()
        return f"{slot.world.name} is gone, with the coordinator"
    assert slot.launch is not None
    processes = [slot.launch, *slot.launch.children] if rng.random() < 0.5 else [slot.launch]
    for process in processes:
        process.die(KILLED, "outside")
    return f"SIGKILL to the coordinator on {slot.world.name}"


def _lose_again(run: FleetRun, rng: Random) -> None:
    slots = running_slots(run)
    if slots and not slots[0].rank and not run.fleet.scheduler.is_done:
        run.fleet.say(_lose(run, slots[0], rng))


def part(run: FleetRun, rng: Random) -> str:
    """Split the network in two."""
    worlds = [world.name for world in run.fleet.worlds if not world.is_off]
    if not worlds:
        return ""
    here = set(rng.sample(worlds, rng.randrange(1, len(worlds) + 1)))
    there = [name for name in worlds if name not in here]
    seconds, links = draw_seconds(rng), run.fleet.links
    for one in sorted(here):  # the order of a set does not follow the seed
        for other in [*there, SCHEDULER]:
            links.cut(one, other, seconds)
            links.cut(other, one, seconds)
    run.fleet.disturb(seconds + RECOVERY_S)
    return f"{', '.join(sorted(here))} are parted from the rest for {seconds:.1f} s"


def lose_storage(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    seconds = draw_seconds(rng)
    cut(run, slot.world, [STORAGE], seconds)
    return f"{slot.world.name} does not see the logdir for {seconds:.1f} s"


def lose_scheduler(run: FleetRun, rng: Random) -> str:
    """Let the scheduler take a healthy machine for lost."""
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    seconds = rng.uniform(*LONG_S)
    cut(run, slot.world, [SCHEDULER], seconds)
    return f"the scheduler does not see {slot.world.name} for {seconds:.1f} s"


def slow_link(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    seconds, delay_s, delays = rng.uniform(5.0, 60.0), rng.choice([0.1, 1.0, 3.0]), run.fleet.links.delay_s
    name = slot.world.name
    delays[name] = delay_s
    run.fleet.disturb(seconds + RECOVERY_S)

    def mend() -> None:
        delays.pop(name, None)

    run.fleet.clock.after(seconds, mend)
    return f"packets of {name} take up to {delay_s} s, for {seconds:.1f} s"


def freeze(run: FleetRun, rng: Random) -> str:
    """Freeze a machine for a while, with its clock as under a hypervisor, or without."""
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    world, seconds = slot.world, draw_seconds(rng)
    is_suspended = rng.random() < 0.3
    world.freeze(seconds, with_clock=is_suspended)
    if is_suspended:
        run.fleet.suspended(world, seconds)
    run.fleet.disturb(seconds + RECOVERY_S)
    if seconds > DEAD_AFTER_S:
        run.fleet.clock.after(seconds, lambda: run.fleet.links.break_connections(lambda a, b: world.name in (a, b)))
    return f"{world.name} stands still for {seconds:.1f} s{', its clock, too' * is_suspended}"


def lose_machine(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    run.fleet.allow(RECOVERY_S)
    slot.world.lose_power()
    return f"{slot.world.name} is gone"


def kill_task(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    child = (
        next((child for child in slot.launch.children if child.task.runs_program), None)
        if slot and slot.launch
        else None
    )
    if child is None:
        return ""
    run.fleet.disturb(RECOVERY_S)
    child.die(KILLED, "outside")
    return f"SIGKILL to {child.task} {child.incarnation}"


def break_worker(run: FleetRun, rng: Random) -> str:
    """Let a worker end at every start, until somebody fixes that and restarts the job."""
    fleet = run.fleet
    workers = [task for task in fleet.tasks[1:] if task.role == WORKER]
    if not workers or fleet.program.together != "served":
        return ""
    task = rng.choice(workers)
    error = rng.choice([ProgramError("OSError", "no such device"), ProgramError(code=3), ProgramError(code=78)])
    fleet.broken[task] = error
    fleet.disturb(RECOVERY_S)
    for world in fleet.worlds:
        process = world.find(task)
        if isinstance(process, ProgramProcess):
            process.doom(error)
    return f"{task} is broken, and is so wherever it is started"


def kill_launch(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None or slot.launch is None:
        return ""
    run.fleet.disturb(RECOVERY_S)
    slot.launch.die(KILLED, "outside")
    return f"SIGKILL to the launch on {slot.world.name}"


def freeze_launch(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None or slot.launch is None:
        return ""
    seconds = draw_seconds(rng)
    slot.launch.freeze(seconds)
    run.fleet.disturb(seconds + RECOVERY_S)
    return f"SIGSTOP to the launch on {slot.world.name} for {seconds:.1f} s"


def kill_service(run: FleetRun, rng: Random) -> str:
    """Kill the checkpoint service, or the summary service of some machine."""
    found = [service for world in run.fleet.worlds for task in SERVICES if (service := world.find(task)) is not None]
    if not found:
        return ""
    process = next((one for one in found if one.task == CHECKPOINT and rng.random() < 0.5), rng.choice(found))
    run.fleet.disturb(RECOVERY_S)
    process.die(KILLED, "outside")
    return f"SIGKILL to the {process.task} service {process.incarnation}"


def damage_copies(run: FleetRun, rng: Random) -> str:
    """Flip bits of snapshots in transit between some machines."""
    fleet, seconds = run.fleet, draw_seconds(rng)
    fleet.damage = rng.choice([0.05, 0.5])
    fleet.disturb(seconds + RECOVERY_S)

    def mend() -> None:
        fleet.damage = 0.0

    fleet.clock.after(seconds, mend)
    return f"snapshots are damaged on their way for {seconds:.1f} s"


def fill_memory(run: FleetRun, rng: Random) -> str:
    """Leave a member's machine no room for a copy."""
    slot = draw_member(run, rng)
    if slot is None:
        return ""
    world, seconds = slot.world, draw_seconds(rng)
    world.has_room = False
    run.fleet.disturb(seconds + RECOVERY_S)

    def mend() -> None:
        world.has_room = True

    run.fleet.clock.after(seconds, mend)
    return f"{world.name} has no room for a copy for {seconds:.1f} s"


def notice_to_one(run: FleetRun, rng: Random) -> str:
    slot = draw_slot(run, rng)
    if slot is None:
        return ""
    run.fleet.scheduler.notify([slot])
    run.fleet.disturb(RECOVERY_S)
    return f"a notice to {slot.world.name}"


def notice_to_all(run: FleetRun, rng: Random) -> str:
    run.fleet.scheduler.notify(running_slots(run))
    run.fleet.disturb(RECOVERY_S)
    return "a notice to all"


FAULTS: dict[Fault, int] = {
    cut_link: 8,
    cut_one_way: 5,
    cut_off: 10,
    strand_coordinator: 10,
    freeze_in_commit: 8,
    freeze_in_renewal: 8,
    lose_coordinator: 14,
    lose_memory: 4,
    part: 4,
    lose_storage: 4,
    lose_scheduler: 3,
    slow_link: 4,
    freeze: 10,
    lose_machine: 6,
    kill_task: 5,
    break_worker: 4,
    kill_launch: 5,
    freeze_launch: 4,
    kill_service: 5,
    damage_copies: 3,
    fill_memory: 4,
    notice_to_one: 4,
    notice_to_all: 2,
}


def draw(rng: Random, choice: Mapping[Fault, int] = FAULTS) -> list[tuple[float, Fault]]:
    """Draw a plan, at times with a single loss: then the step that must survive is known exactly."""
    if rng.random() < SINGLE_CHANCE:
        return [(rng.uniform(12.0, 30.0), lose_memory)]
    return draw_plan(rng, choice, rng.uniform(20.0, 120.0), first_s=3.0, most=5)
