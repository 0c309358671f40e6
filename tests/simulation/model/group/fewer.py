"""Count the workers that a run with --min-workers gives up in one launch, for the invariants."""

from __future__ import annotations

from typing import Any, ClassVar

from procsv.base.cluster import PS, WORKER
from procsv.base.identity import TaskId
from procsv.ipc.messaging.launch_settings import LaunchSettings
from tests.simulation.model import history
from tests.simulation.model.shown import Kinds


class GivenUp:
    """The workers given up in one launch, from its start to its end."""

    LOOKS_AT: ClassVar[Kinds] = (history.Journaled, history.SpawnAsked, history.LaunchEnded)

    def __init__(self, settings: LaunchSettings, tasks: tuple[TaskId, ...], *, in_step: bool) -> None:
        """`in_step`: the tasks need each other."""
        self._least, self._tasks, self._in_step = settings.min_workers, tasks, in_step
        self.tasks: set[TaskId] = set()
        self.ends_run = False

    def check(self, fact: Any) -> str:
        """Return what is wrong with it, or ""."""
        match fact:
            case history.Journaled("task_given_up", task, _, fields):
                self.tasks.add(task)
                return self._wrong_loss(task, fields)
            case history.Journaled("gave_up", task):
                self.ends_run = True
                if task.role == WORKER and task != self._tasks[0] and not self._in_step and self._is_enough(but=task):
                    return f"the run ends with {task}, although {self._left(but=task)} workers are left"
            case history.SpawnAsked(task) if task in self.tasks:
                return f"{task} is started again, although it was given up"
            case history.LaunchEnded(70) if not self.ends_run:
                return f"the run is given up, although only {sorted(map(str, self.tasks))} were"
        return ""

    def _wrong_loss(self, task: TaskId, fields: dict[str, Any]) -> str:
        if task == self._tasks[0] or task.role == PS:
            return f"the run goes on without {task}, which all need"
        if task.role != WORKER:
            return ""
        if self._in_step or not self._is_enough():
            return f"the run goes on without {task}, although only {self._left()} workers are left"
        if fields["workers"] != self._left():
            return f"{fields['workers']} workers are told to be left, and {self._left()} are"
        return ""

    def _left(self, but: TaskId | None = None) -> int:
        return sum(task.role == WORKER and task not in self.tasks and task != but for task in self._tasks)

    def _is_enough(self, but: TaskId | None = None) -> bool:
        return self._least is not None and self._left(but) >= self._least
