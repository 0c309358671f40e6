"""Order in which the tasks of a run are asked to end: workers and evaluators, then the chief, which saves, then the servers.

Used by ending.py.  Pure.  The chief's last state holds what the workers have trained, and is read from the servers.  Those of a gang,
and workers that only serve a coordinator, come after the chief: it cannot end the step that it is in without them, and what they hold
it has saved.  A run of one task has no order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from procsv.base.cluster import PS
from procsv.base.grace import HEAD_START_S
from procsv.base.identity import TaskId
from procsv.base.run.manifest import Reason


class Request(msgspec.Struct, frozen=True):
    """What each task is told.  `at_once`: those that are ended without waiting for their program."""

    why: str
    reason: Reason = "final"
    at_once: frozenset[TaskId] = frozenset()


class EndOrder(msgspec.Struct):
    """Which tasks are to be told now, as each of them is, once."""

    chief: TaskId
    request: Request | None = None
    _told: set[TaskId] = msgspec.field(default_factory=set)
    _chief_s: float = 0.0  # when the chief's turn has come, whatever the workers do

    def begin(self, request: Request, now_s: float) -> None:
        """From now on the tasks are to end.  Asked again: those that are to end at once are told once more."""
        if self.request is None:
            self._chief_s = now_s + HEAD_START_S
        self.request = request
        self._told -= request.at_once

    def take_due(self, running_on: Collection[TaskId], now_s: float, needed: Collection[TaskId] = ()) -> list[TaskId]:
        """Those whose turn it is, of `running_on`, the tasks that have not ended.  `needed`: without whom the chief can end no step."""
        if self.request is None:
            return []
        due = [task for task in self._turn(running_on, now_s, needed) if task not in self._told]
        due += [task for task in running_on if task in self.request.at_once - self._told and task not in due]
        self._told.update(due)
        return due

    def next_due_s(self, running_on: Collection[TaskId]) -> float | None:
        is_waiting = self.request is not None and self.chief in running_on and self.chief not in self._told
        return self._chief_s if is_waiting else None

    def _turn(self, running_on: Iterable[TaskId], now_s: float, needed: Collection[TaskId]) -> list[TaskId]:
        servers = [task for task in running_on if task.role == PS and task != self.chief]
        others = [task for task in running_on if task not in servers]
        first = [task for task in others if task != self.chief and task not in needed]
        if first and now_s < self._chief_s:
            return first
        if self.chief in others:
            return [*first, self.chief]
        return others or servers
