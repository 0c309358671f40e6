"""One machine of several: a World that shares its clock, its disk and its tasks' servers with the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from procsv.base.outcome import Exit
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.settings import Settings
from tests.simulation.model import history
from tests.simulation.model.disk import SimDisk
from tests.simulation.model.machines import facts
from tests.simulation.model.machines.clock import MachineClock
from tests.simulation.model.machines.services import MachineEnvironment
from tests.simulation.model.machines.tasks import SeenServers
from tests.simulation.model.memory import SimMemory
from tests.simulation.model.network import SimNetwork
from tests.simulation.model.processes import KILLED, Process
from tests.simulation.model.services import ServiceProcess, SimEnvironment
from tests.simulation.model.stream_store import EventDisk
from tests.simulation.model.world import World

if TYPE_CHECKING:
    from tests.simulation.model.machines.fleet import Fleet
    from tests.simulation.model.machines.launch import Launch


class MachineWorld(World):
    def __init__(self, fleet: Fleet, name: str, clock: MachineClock) -> None:
        number = len(fleet.worlds)
        super().__init__(fleet.seed + 7 * number, fleet.program, Settings(fleet.settings, tasks=fleet.settings.tasks))
        self.fleet, self.name, self.clock = fleet, name, clock
        self.rng = Random(f"{fleet.seed} {name}")
        self.network = SimNetwork(clock, Random(self.seed + 1))
        self.disk = fleet.logdir.disk
        self.events = EventDisk(
            SimDisk(Random(self.seed + 2))
        )  # each machine has its own summaries, which nobody checks here
        self.memory, self.mirror = SimMemory(Path("/shm")), SimMemory(Path("/shm-mirror"))
        self.has_room = True  # room for a copy
        self.broken = fleet.broken
        self.launch_here: Launch | None = None
        self.is_off = False  # the machine is gone for good
        self.sees_scheduler = True
        self.at_commit: tuple[int, Callable[[], None]] | None = None  # a fault at that step of its next commit

    @property
    def sees_logdir(self) -> bool:
        return self.fleet.links.joins(self.name, "storage")

    # -- history ---------------------------------------------------------------------------------------------
    def note(self, fact: history.Fact) -> None:
        self.fleet.note(fact, self)

    def say(self, text: str) -> None:
        self.fleet.say(text)

    # -- processes -------------------------------------------------------------------------------------------
    def environment_of(self, service: ServiceProcess, start: Start) -> SimEnvironment:
        return MachineEnvironment(service, start, self)

    def new_pid(self) -> int:
        return self.fleet.new_pid()

    def born(self, process: Process) -> None:
        super().born(process)
        logdir = self.fleet.logdir
        logdir.last_incarnation = max(logdir.last_incarnation, self.last_incarnation)

    def process_died(self, process: Process, exit: Exit, by: str) -> None:
        launch = self.launch_here
        super().process_died(process, exit, by)
        if launch is not None and process is launch:
            for child in list(launch.children):
                child.orphan()
            self.fleet.scheduler.launch_ended(launch, exit)
        elif launch is not None and not launch.is_dead and launch.hosts(process):
            launch.child_died(process, exit)

    # -- faults ----------------------------------------------------------------------------------------------
    def strike_commit(self, step: int) -> None:
        if self.at_commit is not None and step >= self.at_commit[0]:
            (_, strike), self.at_commit = self.at_commit, None
            strike()

    def freeze(self, seconds: float, *, with_clock: bool = False) -> None:
        """Freeze all of it. `with_clock` also stops its clock, as a hypervisor does."""
        self.fleet.note(facts.Disturbed(seconds), self)
        if with_clock:
            self.clock.stand_still(seconds)  # type: ignore[attr-defined]
        for process in list(self.processes.values()):
            process.freeze(seconds)

    def lose_power(self) -> None:
        self.fleet.note(facts.MachineLost(self.name), self)
        self.is_off = True
        self.strays.clear()
        for process in list(self.processes.values()):
            process.die(KILLED, "power")
        self.memory.clear()
        self.mirror.clear()
        self.clear_run_dir()

    def join_run(self, run: str) -> None:
        """From now on its tasks belong to that run."""
        group = self.fleet.group(run)
        self.servers = SeenServers(group.servers, self.name, self.fleet.answers_at)
        self.rings = group.rings
