"""All machines of a simulated run, their network, what they share, and the scheduler that places the launches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NoReturn

from procsv.base.cluster import list_spares
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from tests.simulation.model import history
from tests.simulation.model.clock import SimClock
from tests.simulation.model.group.in_step import Rings
from tests.simulation.model.group.served import Servers
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.clock import MachineClock
from tests.simulation.model.machines.copies import Offered
from tests.simulation.model.machines.links import Links
from tests.simulation.model.machines.machine_world import MachineWorld
from tests.simulation.model.machines.scheduler import Scheduler
from tests.simulation.model.machines.shared import SharedLogdir
from tests.simulation.model.machines.tasks import SpreadRings
from tests.simulation.model.processes import Process
from tests.simulation.model.program import Program, ProgramError
from tests.simulation.model.trace import show
from tests.simulation.model.world import Violation

AHEAD_S_MAX = 10_000.0  # machines have different uptimes
DRIFT_MAX = 2e-4
WALL_S_MAX = 600.0
RECOVERY_S = 60.0  # what a short fault may still disturb
SEEN_S = 30.0  # time for enough beats to know a clock

Watcher = Callable[[history.Fact | facts.Fact, MachineWorld], None]


class Group:
    """What the tasks of one run share."""

    def __init__(self, tasks: tuple[TaskId, ...], fleet: Fleet) -> None:
        self.servers: Servers = Servers(tasks)
        self.rings: Rings = SpreadRings(
            tasks, lambda one, other: fleet.links.joins(world_of(one).name, world_of(other).name)
        )


def world_of(process: Process) -> MachineWorld:
    assert isinstance(process.world, MachineWorld)
    return process.world


class Fleet:
    def __init__(
        self,
        seed: int,
        program: Program,
        settings: LaunchSettings,
        spares: int,
        node_timeout_s: float = 30.0,
        pause_s: float = 3.0,
        *,
        names_tasks: bool = False,
        revives_s: float | None = None,
        bytes_per_s: float = 1e9,
    ) -> None:
        """`names_tasks`: addresses are names that move with their tasks. `revives_s`: see Scheduler."""
        self.seed, self.program, self.settings = seed, program, settings
        self.tasks, self.spares = settings.tasks, list_spares(spares)
        self.rng = Random(seed)
        self.clock = SimClock()
        self.links = Links(self.clock, Random(seed + 1))
        self.worlds: list[MachineWorld] = []
        self.calm_from_s = 0.0
        self.names_tasks = names_tasks
        self.broken: dict[TaskId, ProgramError] = {}  # errors that end a task wherever it starts
        self.offers: dict[bytes, Offered] = {}  # snapshots that may be fetched
        self.bytes_per_s, self.damage = bytes_per_s, 0.0  # the network's speed; a piece's chance of damage
        self.failed = ""  # the first invariant that did not hold
        self.trace: Callable[[str], None] | None = None
        self.watchers: list[Watcher] = []
        self._pids, self._ports, self._runs = 1000, 20_000, 0
        self._groups: dict[str, Group] = {}
        self._suspended_s: dict[str, float] = {}
        self.logdir = SharedLogdir(
            self.clock, Random(seed + 2), lambda run, path: self.note(facts.Changed(run, path), None)
        )
        self.scheduler = Scheduler(self, node_timeout_s, pause_s, no_kill=spares > 0, revives_s=revives_s)

    # -- history ---------------------------------------------------------------------------------------------
    def note(self, fact: history.Fact | facts.Fact, world: MachineWorld | None) -> None:
        if self.trace is not None and (line := _show(fact)):
            self.trace(f"{self.clock.now_s - 1000.0:10.4f}  {world.name if world is not None else '':4}  {line}")
        for watcher in self.watchers:
            watcher(fact, world)  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.clock.now_s - 1000.0:10.4f}  ** {text}")

    def fail(self, name: str, why: str) -> NoReturn:
        """Record the violation as well: a service's thread takes what its job raises for the job's outcome."""
        self.failed = self.failed or f"{name}: {why}"
        raise Violation(self.failed)

    def disturb(self, seconds: float) -> None:
        """Note a disturbance by a fault of that many seconds and its consequences."""
        self.note(facts.Disturbed(max(0.0, seconds - RECOVERY_S)), None)
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Allow anything to be late by that many seconds."""
        self.calm_from_s = max(self.calm_from_s, self.clock.now_s + seconds)

    # -- machines --------------------------------------------------------------------------------------------
    def new_world(self) -> MachineWorld:
        rng = self.rng
        clock = MachineClock(
            self.clock,
            rng.uniform(0.0, AHEAD_S_MAX),
            rng.uniform(-DRIFT_MAX, DRIFT_MAX),
            rng.uniform(-WALL_S_MAX, WALL_S_MAX),
        )
        world = MachineWorld(self, f"m{len(self.worlds)}", clock)
        self.worlds.append(world)
        return world

    def free_worlds(self, count: int) -> list[MachineWorld]:
        """Return the machines that the scheduler can give: healthy and, to its knowledge, unused."""
        slots = [slot for attempt in self.scheduler.attempts for slot in attempt.slots]
        in_use = {slot.world for slot in slots if not slot.is_over}
        in_use |= {world for world in self.worlds if world.launch_here is not None and not world.launch_here.is_dead}
        free = [w for w in self.worlds if not w.is_off and w not in in_use and self.links.joins("scheduler", w.name)]
        if free and self.rng.random() < 0.5:
            free = free[1:] + free[:1]
        return [*free[:count], *(self.new_world() for _ in range(count - len(free)))]

    def find_world(self, name: str) -> MachineWorld:
        return self.worlds[int(name[1:])]

    def suspended(self, world: MachineWorld, seconds: float) -> None:
        """Note that its clock has stopped, for that many seconds from now."""
        self._suspended_s[world.name] = self.clock.now_s + seconds

    def was_suspended(self, *machines: str) -> bool:
        """Return whether a clock stopped so recently that nobody can have measured it again."""
        return any(self.clock.now_s < self._suspended_s.get(name, 0.0) + SEEN_S for name in machines)

    def answers_at(self, process: Process, machine: str) -> bool:
        return self.links.joins(world_of(process).name, machine)

    # -- names -----------------------------------------------------------------------------------------------
    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    def new_run_id(self) -> str:
        self._runs += 1
        return f"{self.seed & 0xFFFFFFFF:08x}{self._runs:08x}"

    def group(self, run: str) -> Group:
        if run not in self._groups:
            self._groups[run] = Group(self.tasks, self)
        return self._groups[run]

    def go_on(self, run: str, before: str) -> None:
        """Let the tasks of `run` share what the tasks of `before` shared."""
        self._groups[run] = self.group(before)
        self.say(f"{run} goes on with what {before} has left")

    @property
    def living(self) -> list[Process]:
        return [process for world in self.worlds for process in world.processes.values()]


def _show(fact: history.Fact | facts.Fact) -> str:
    if isinstance(fact, facts.ClockSeen | facts.Disturbed):
        return ""
    return show(fact)  # type: ignore[arg-type]
