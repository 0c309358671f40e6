"""`procsv launch` on one machine of several: a process that takes its directories, then exits with
a code or starts over.

It holds what the coordinator's launch (coordinator.py) and a member's launch (member.py) have in
common.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import msgspec

from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.outcome import Exit
from procsv.base.service_table import SERVICES
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.events import StopAsked
from procsv.watchdog.edge.opening.leftovers import LEFTOVER_MARGIN_S
from tests.simulation.model.machine import Machine
from tests.simulation.model.machines import facts
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld
    from tests.simulation.model.machines.scheduler import Slot

LOOK_S = 0.25  # how often it checks what an earlier launch left here
STORAGE_LOOK_S = 0.5
EXIT_LOCKED = 73
LINE = ("train.py", "--rate=0.1")
AGAIN = Exit(200, None)  # no real exit code: this launch restarts, with another task

Opening = Generator[float, None, None]  # yields the seconds until it looks again


class Move(msgspec.Struct, frozen=True):
    """A procsv.base.placement.Move."""

    task: TaskId
    spares: tuple[TaskId, ...]


class Refusal(Exception):
    """It ends with that code before anything starts."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Launch(Process):
    machine: Machine

    def __init__(self, world: MachineWorld, slot: Slot) -> None:
        self.slot, self.fleet, self.here = slot, world.fleet, world
        self.moves_to: Move | None = None
        self.asked: list[StopAsked] = []  # signals from before there was a machine to receive them
        self._opening: Opening | None = self._open()
        super().__init__(world, WATCHDOG, 1)
        world.launch_here = self
        self.wake()

    def _open(self) -> Opening:
        raise NotImplementedError

    def _serve(self) -> None:
        """Run one turn of its loop."""
        raise NotImplementedError

    # -- the machine's view ----------------------------------------------------------------------------------
    def hosts(self, process: Process) -> bool:
        machine: Machine | None = getattr(self, "machine", None)
        return machine is not None and machine.children.get(process.task) is process

    @property
    def children(self) -> list[Process]:
        machine: Machine | None = getattr(self, "machine", None)
        return list(machine.children.values()) if machine is not None else []

    def child_died(self, process: Process, exit: Exit) -> None:
        self.machine.child_died(process, exit)

    def stop(self, source: str, now: bool = False, is_notice: bool = False) -> None:
        """Send it a signal."""
        asked = StopAsked(source, now, is_notice)
        if getattr(self, "machine", None) is None:
            self.asked.append(asked)
        else:
            self.machine.asked.append(asked)
        self.wake()

    # -- turns -----------------------------------------------------------------------------------------------
    def turn(self) -> None:
        if not self.here.sees_logdir:  # a reader or writer of the logdir waits
            self.wake(STORAGE_LOOK_S)
            return
        if self._opening is None:
            self._serve()
            return
        try:
            if self.asked:
                raise Refusal(f"{self.asked[0].source}: stopped before anything was started", 75)
            self.wake(next(self._opening))
        except StopIteration:
            self._opening = None
            self.wake()
        except Refusal as refusal:
            self._refused(refusal)

    def _refused(self, refusal: Refusal) -> None:
        self.leave(refusal.exit_code, str(refusal))

    def leave(self, exit_code: int, why: str) -> None:
        again = self.moves_to is not None
        self.fleet.note(facts.Left(self.slot.attempt.scheduler, self.slot.rank, exit_code, again, why), self.here)
        self.die(AGAIN if again else Exit(exit_code, None), "itself")

    def take_directories(self) -> Opening:
        """Wait for what an earlier launch left alive on this machine, and take its place."""
        world, give_up_s = self.here, self.here.clock.now_s + self.fleet.settings.grace_s + LEFTOVER_MARGIN_S
        while True:
            if world.holder(WATCHDOG) is not None:
                raise Refusal("another launch is here", EXIT_LOCKED)
            if not world.writer_lock_is_held() and not any(world.holder(task) for task in SERVICES):
                break
            for task in SERVICES:
                world.wake_holder(task)
            if world.clock.now_s > give_up_s:
                raise Refusal("what an earlier run has started is still alive", EXIT_LOCKED)
            yield LOOK_S
        self.holds_lock = True
        world.clear_run_dir()

    def make_start(self, run: str) -> Start:
        world, fleet = self.here, self.fleet
        where = ("/logdir", "/run", str(world.memory.directory))
        return Start(
            WATCHDOG, run, 1, *where, target=LINE[0], args=LINE[1:], settings=fleet.settings, chief=fleet.tasks[0]
        )
