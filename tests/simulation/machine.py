"""The machine as a simulated watchdog sees it: its children, and what it reads and writes.

The ports of watchdog/edge/environment.py over a world in memory.  Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base.identity import STANDBY, TRAINER, TaskId
from procsv.base.outcome import Exit
from procsv.base.run.run_file import RunFile
from procsv.ipc.messaging.messages import RunMetrics
from procsv.ipc.messaging.standby_messages import Waiting
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.events import STOPPED, Ended, Promoted, Report, StandbySaid
from procsv.watchdog.edge.environment import Dead
from tests.simulation import history
from tests.simulation.processes import KILLED, Process
from tests.simulation.services import ServiceProcess
from tests.simulation.standby import StandbyProcess
from tests.simulation.trainer import Trainer
from tests.support.watchdog_doubles import NOTHING_USED

if TYPE_CHECKING:
    from tests.simulation.world import World

PROMOTION_S = 0.002
DEATH_NOTICED_S = 0.001


class Machine:
    """`wake`: the watchdog has something to hear."""

    def __init__(self, world: World, start: Start, wake: Callable[[float], None]) -> None:
        self._world, self._start, self._wake = world, start, wake
        self.children: dict[TaskId, Process] = {}
        self._dead: list[tuple[Process, Exit]] = []
        self._corpses: dict[TaskId, Process] = {}  # reaped, and not yet examined
        self._said: list[StandbySaid | Promoted] = []

    # -- processes -------------------------------------------------------------------------------------------
    def spawn(self, task: TaskId, incarnation: int, standby: str) -> int:
        world = self._world
        world.note(history.SpawnAsked(task, incarnation))
        if error := world.why_not_spawned(task):
            raise OSError(error)
        child: Process
        if task == TRAINER:
            child = Trainer(world, incarnation, self._start.run, self._start.settings.grace_s)
        elif task == STANDBY:
            child = StandbyProcess(world, incarnation, self._standby_waits)
        else:
            start = msgspec.structs.replace(self._start, task=task, incarnation=incarnation)
            child = ServiceProcess(world, start, world.socket(task))
        self.children[task] = child
        return child.pid

    def child_died(self, process: Process, exit: Exit) -> None:
        """Its pidfd is readable."""
        self._dead.append((process, exit))
        self._wake(DEATH_NOTICED_S)

    def ended(self) -> list[Dead]:
        ended, self._dead = self._dead, []
        for process, _ in ended:
            self._corpses[process.task] = self.children.pop(process.task)
        return [Dead(process.task, process.incarnation, process.pid, exit) for process, exit in ended]

    def signal(self, task: TaskId, incarnation: int, number: int) -> None:
        child = self._find(task, incarnation)
        assert child is None or isinstance(child, Trainer | ServiceProcess), f"signal {number} to {task}"
        if child is not None and not child.is_dead:
            child.hear_signal(number)

    def kill_tree(self, task: TaskId, incarnation: int) -> None:
        child = self._find(task, incarnation)
        if child is not None:
            child.die(KILLED, "watchdog")

    def clear_tree(self) -> bool:
        return self._world.clear_tree()

    def reap_strays(self) -> None:
        """They need no reaping."""

    def is_stopped(self, task: TaskId) -> bool:
        child = self.children.get(task)
        return child is not None and child.is_frozen

    def doing(self, task: TaskId) -> str:
        return STOPPED if self.is_stopped(task) else ""

    def usage(self, task: TaskId) -> Mapping[str, float | int]:
        return NOTHING_USED

    def _find(self, task: TaskId, incarnation: int) -> Process | None:
        child = self.children.get(task)
        return child if child is not None and child.incarnation == incarnation else None

    # -- the standby -----------------------------------------------------------------------------------------
    def hear(self) -> list[StandbySaid | Promoted]:
        said, self._said = self._said, []
        return said

    def _standby_waits(self, number: int, seconds: float) -> None:
        self._said.append(StandbySaid(number, Waiting(100, seconds)))
        self._wake(0.0)

    def promote(self, number: int, incarnation: int) -> None:
        world, standby = self._world, self._find(STANDBY, number)
        world.note(history.SpawnAsked(TRAINER, incarnation))
        if not isinstance(standby, StandbyProcess) or standby.is_dead or world.writer_lock_is_held():
            raise ProcessLookupError("it is gone")
        del self.children[STANDBY]
        standby.become_another()
        trainer = Trainer(world, incarnation, self._start.run, self._start.settings.grace_s, standby)
        self.children[TRAINER] = trainer
        world.clock.after(PROMOTION_S, lambda: self._has_begun(number, trainer))

    def _has_begun(self, number: int, trainer: Trainer) -> None:
        if trainer.is_frozen and not trainer.is_dead:
            self._world.clock.at(trainer.frozen_until_s, lambda: self._has_begun(number, trainer))
        elif not trainer.is_dead:
            self._said.append(Promoted(number, trainer.incarnation, trainer.pid))
            self._wake(0.0)

    # -- heartbeats, and what the dead have left -------------------------------------------------------------
    def follow(self, task: TaskId, incarnation: int) -> None:
        """A process and its heartbeat are one here."""

    def read(self) -> dict[TaskId, Heartbeat]:
        beats = {task: _beat(process) for task, process in self.children.items()}
        return {task: beat for task, beat in beats.items() if beat is not None}

    def drop(self, task: TaskId) -> Heartbeat | None:
        corpse = self._corpses.get(task)
        return _beat(corpse) if corpse is not None else None

    def examine(self, dead: Dead, beat: Heartbeat | None) -> Ended:
        corpse = self._corpses.pop(dead.task)
        if not isinstance(corpse, Trainer):
            return Ended(dead.task, dead.incarnation, dead.exit, beat)
        words = corpse.words if corpse.words.type else None
        return Ended(TRAINER, dead.incarnation, dead.exit, beat, words, self.memory_step())

    def clear(self, dead: Dead) -> None:
        """It has left no files."""

    def memory_step(self) -> int:
        return self._world.memory.newest_step()

    # -- records ---------------------------------------------------------------------------------------------
    def append(self, event: str, task: TaskId, incarnation: int, fields: dict[str, Any]) -> None:
        self._world.note(history.Journaled(event, task, incarnation, fields))

    def write_run(self, run: RunFile, durable: bool) -> None:
        self._world.run_json = run

    def write_report(self, report: Report, run: RunFile) -> None:
        """For people."""

    def metrics_due(self, now_s: float, step: int) -> RunMetrics | None:
        return None

    def close(self) -> None:
        """There are no descriptors."""


def _beat(process: Process) -> Heartbeat | None:
    if isinstance(process, Trainer):
        return process.beat()
    return process.heartbeat.read() if isinstance(process, ServiceProcess) else None
