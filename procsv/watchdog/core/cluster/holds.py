"""News of holds over machines for the chief: where each task that trains is held, and which ones make no step any more.  Pure.

Made by run.py.  Next to nothing is remembered: a chief that is new asks, and each task that runs answers, whichever coordinator has
started it.
"""

from __future__ import annotations

from collections.abc import Mapping

from procsv.base.cluster import STEPLESS
from procsv.base.identity import TaskId
from procsv.ipc.messaging import messages
from procsv.watchdog.core.actions import Action, Tell
from procsv.watchdog.core.events import Said
from procsv.watchdog.core.task.trainer import TrainerSupervisor


class Holds:
    def __init__(self, tasks: Mapping[TaskId, TrainerSupervisor], chief: TaskId) -> None:
        self._tasks, self._chief = tasks, chief
        self._between: dict[TaskId, int] = {}  # the attempts that have ended their steps by themselves
        self._lost: dict[TaskId, int] = {}  # the attempts that were lost with their machines, or launches

    def said(self, said: Said) -> list[Action]:
        """What follows from what the newest attempt of a task has said; nothing from what is not of holds."""
        match said.body:
            case messages.HoldOffered(offer):
                return [Tell(self._chief, messages.HoldTold(said.task, said.incarnation, offer))]
            case messages.StepsEnded():
                self._between[said.task] = said.incarnation
            case messages.AskHolds():
                return [follows for task in self._held() for follows in (self.ended(task) or _ask(task))]
        return []

    def launch_lost(self, task: TrainerSupervisor) -> None:
        """It is cut off, frozen, killed or gone: what it has started may train on, once more or still."""
        self._lost[task.task] = task.incarnation

    def ended(self, task: TrainerSupervisor) -> list[Action]:
        """Of a task that makes no step any more, as it is not started again: the chief does not wait for it."""
        if task not in self._held() or not task.ends_run or self._lost.get(task.task) == task.incarnation:
            return []
        is_between = self._between.get(task.task) == task.incarnation
        return [Tell(self._chief, messages.HoldTold(task.task, task.incarnation, None, is_between=is_between))]

    def _held(self) -> list[TrainerSupervisor]:
        """Those that the chief holds."""
        return [task for name, task in self._tasks.items() if name != self._chief and name.role not in STEPLESS]


def _ask(task: TrainerSupervisor) -> list[Action]:
    return [Tell(task.task, messages.AskHold())] if task.pid else []
