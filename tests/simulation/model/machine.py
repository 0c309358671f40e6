"""The machine as a simulated watchdog sees it: its children are simulated processes. It also notes
what happens in the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base.identity import STANDBY, TaskId
from procsv.base.journal.entries import Entry
from procsv.base.outcome import Exit, LastWords
from procsv.base.run.run_file import RunFile
from procsv.ipc.messaging.fd_messages import Waiting
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.events import STOPPED
from procsv.watchdog.host.standby import PROMOTE_S_MAX, Promoted, StandbySaid
from tests.simulation.model import history
from tests.simulation.model.group.kinds import kind_of
from tests.simulation.model.processes import KILLED, Process
from tests.simulation.model.program_process import ProgramProcess
from tests.simulation.model.services import ServiceProcess
from tests.simulation.model.standby import StandbyProcess
from tests.support.watchdog_machine import MachineInMemory

if TYPE_CHECKING:
    from tests.simulation.model.world import World

PROMOTION_S = 0.002
DEATH_NOTICED_S = 0.001
THAW_LOOK_S = 0.05  # SIGCONT may come at any time


class Machine(MachineInMemory[Process]):
    """Calls `wake` when there is news for the watchdog."""

    def __init__(self, world: World, start: Start, wake: Callable[[float], None]) -> None:
        super().__init__()
        self._world, self._start, self._wake = world, start, wake

    # -- processes -------------------------------------------------------------------------------------------
    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        world = self._world
        world.note(history.SpawnAsked(task, incarnation))
        if error := world.why_not_spawned(task):
            raise OSError(error)
        child: Process
        if task.runs_program:
            child = self._program(task, incarnation)
        elif task == STANDBY:
            child = StandbyProcess(world, incarnation, self._standby_waits)
        else:
            start = msgspec.structs.replace(self._start, task=task, incarnation=incarnation)
            child = ServiceProcess(world, start, world.socket(task))
        self.children[task] = child
        return child.pid

    def child_died(self, process: Process, exit: Exit) -> None:
        self.dead.append((process, exit))
        self._wake(DEATH_NOTICED_S)

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        child = self.find(task, incarnation)
        assert child is None or isinstance(child, ProgramProcess | ServiceProcess | StandbyProcess), task
        if child is not None and not child.is_dead:
            child.hear_signal(number)

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        child = self.find(task, incarnation)
        if child is not None:
            child.die(KILLED, "watchdog")

    def name_strays(self, task: TaskId) -> list[str]:
        return []

    def clear_tree(self, task: TaskId) -> bool:
        return self._world.clear_tree(task)

    def is_stopped(self, task: TaskId) -> bool:
        child = self.children.get(task)
        return child is not None and child.is_frozen

    def doing(self, task: TaskId) -> str:
        return STOPPED if self.is_stopped(task) else ""

    # -- the standby -----------------------------------------------------------------------------------------
    def _standby_waits(self, number: int, seconds: float) -> None:
        self._standby_said(StandbySaid(number, Waiting(100, seconds)))

    def _standby_said(self, word: StandbySaid | Promoted) -> None:
        self.standby_words.append(word)
        self._wake(0.0)

    def import_more(self, number: int) -> None:
        standby = self.find(STANDBY, number)
        if isinstance(standby, StandbyProcess) and not standby.is_dead:
            standby.import_more()

    def promote(self, number: int, task: TaskId, incarnation: int) -> None:
        world, standby = self._world, self.find(STANDBY, number)
        world.note(history.SpawnAsked(task, incarnation))
        if not isinstance(standby, StandbyProcess) or standby.is_dead or world.writer_lock_is_held(task):
            raise ProcessLookupError("it is gone")
        del self.children[STANDBY]
        if world.program.forks:
            standby.task, standby.incarnation = (
                task,
                incarnation,
            )  # until there is a fork, the standby is watched
            self.children[task] = standby
            world.clock.after(PROMOTION_S, lambda: self._once_awake(standby, lambda: self._has_forked(number, standby)))
            return
        standby.become_another()
        program = self._program(task, incarnation, standby=standby)
        world.clock.after(PROMOTION_S, lambda: self._once_awake(program, lambda: self._has_begun(number, program)))

    def _program(self, task: TaskId, incarnation: int, **origin: Any) -> ProgramProcess:
        kind = kind_of(self._world, task)
        program = kind(self._world, task, incarnation, self._start.run, self._start.settings.grace_s, **origin)
        self.children[task] = program
        return program

    def _once_awake(self, process: Process, go_on: Callable[[], None]) -> None:
        now_s = self._world.clock.now_s
        if process.is_frozen and not process.is_dead:
            if process.frozen_until_s > now_s + PROMOTE_S_MAX - PROMOTION_S:
                process.was_stopped_for_ever = True  # a promotion waits only that long
            look_s = min(process.frozen_until_s, now_s + THAW_LOOK_S)
            self._world.clock.at(look_s, lambda: self._once_awake(process, go_on))
        elif not process.is_dead:
            go_on()

    def _has_begun(self, number: int, program: ProgramProcess) -> None:
        self._standby_said(Promoted(number, program.task, program.incarnation, program.pid))

    def _has_forked(self, number: int, standby: StandbyProcess) -> None:
        task, incarnation = standby.task, standby.incarnation
        standby.task, standby.incarnation = STANDBY, number
        self.children[STANDBY] = standby
        program = self._program(task, incarnation, is_fork=True)
        self._standby_said(Promoted(number, task, incarnation, program.pid, is_fork=True))

    # -- leftovers of processes and records of the run -------------------------------------------------------
    def beat_of(self, child: Process) -> Heartbeat | None:
        if isinstance(child, ProgramProcess):
            return child.beat()
        return child.heartbeat.read() if isinstance(child, ServiceProcess) else None

    def words_of(self, child: Process) -> LastWords | None:
        return child.words if isinstance(child, ProgramProcess) and child.words.type else None

    def snapshot_step(self, task: TaskId) -> int:
        return self._world.memory.newest_step(task)

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self._world.note(history.Journaled(entry.event, task, incarnation, entry.fields()))

    def write_run(self, run: RunFile, durable: bool) -> None:
        self._world.run_json = run
