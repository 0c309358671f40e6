"""Identify the processes of a run by role and index; an incarnation counts the starts of each.

Every process uses a TaskId as the key of addresses, paths, locks, events and journal lines; nothing
is keyed by a bare role.  This module does not know what a role does.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

PROGRAM_ROLES = frozenset({"trainer", "chief", "worker", "ps", "evaluator"})  # they run the user's program
NUMBERED_ROLES = frozenset({"worker", "ps", "evaluator", "spare"})  # a run has any number of them: worker.0, worker.1
_NAME = re.compile(r"([a-z]+)(?:\.(\d+))?")


class TaskId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Identifies a process of a run.

    Its name is the role, followed by the index if a run may have several of that role: `trainer`,
    `worker.1`.
    """

    role: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]  # becomes part of file names
    index: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __str__(self) -> str:
        return f"{self.role}.{self.index}" if self.index or self.role in NUMBERED_ROLES else self.role

    @classmethod
    def parse(cls, name: str) -> TaskId:
        """Returns the task with that name; ValueError if no task can have it."""
        match = _NAME.fullmatch(name)
        task = cls(match[1], int(match[2] or 0)) if match is not None else None
        if task is None or str(task) != name:
            raise ValueError(f"{name!r} is not the name of a task; write a role such as trainer or worker.1")
        return task

    @property
    def runs_program(self) -> bool:
        """Whether it runs the user's program; services, the watchdog and commands do not."""
        return self.role in PROGRAM_ROLES


def attempt_name(task: TaskId, incarnation: int) -> str:
    """Returns the name of an attempt, for the names of files that only programs leave.

    `3` is the trainer's third attempt, and `worker.1.3` the third attempt of worker.1.
    """
    return str(incarnation) if task == TRAINER else f"{task}.{incarnation}"


def parse_attempt(name: str) -> tuple[TaskId, int]:
    """Returns the task and incarnation of the attempt with that name.

    ValueError if no attempt has it.
    """
    task, _, number = name.rpartition(".")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{name!r} is not the name of an attempt")
    return (TaskId.parse(task) if task else TRAINER), int(number)


TRAINER, STANDBY, WATCHDOG = TaskId("trainer"), TaskId("standby"), TaskId("watchdog")
CHECKPOINT, SUMMARY = TaskId("checkpoint"), TaskId("summary")
COMMAND_LINE = TaskId("cli")  # belongs to no run, and may exchange messages with any
