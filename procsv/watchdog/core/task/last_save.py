"""Last save of a dead trainer: what the checkpoint service is asked about the state that it left, and what it has answered.

Used by trainer.py.  Pure.  Whether to start again is not decided before the answer: what is being saved may be progress.
"""

from __future__ import annotations

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.ipc.messaging import watchdog_messages


class LastSave:
    """Of the newest attempt of `task` that has ended."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self.unsettled: watchdog_messages.TrainerExited | None = None  # what the checkpoint service has still to answer
        self.error = ""  # why that state is not on disk
        self._avoid_step = NO_STEP  # what another of its gang has resumed from, and crashed again and again

    def has_ended(self, incarnation: int, *, is_clean: bool) -> None:
        """The attempt left something to save; `is_clean`: it had saved by itself, or was asked to end."""
        self.unsettled = watchdog_messages.TrainerExited(incarnation, is_clean, self._avoid_step, self._task)
        self._avoid_step = NO_STEP

    def avoid(self, step: int, incarnation: int, *, is_running: bool) -> None:
        """The next attempt is to get the state before that of `step`; if one still runs, that is asked when it has ended."""
        if is_running:
            self._avoid_step = step
        else:
            self.unsettled = watchdog_messages.TrainerExited(incarnation, False, step, self._task)

    def settle(self, of: watchdog_messages.TrainerExited, error: str) -> bool:
        """Whether this answers what is asked.  `error`: why the state cannot be saved; "" if it is on disk."""
        if self.unsettled is None or of.incarnation != self.unsettled.incarnation:
            return False
        self.unsettled, self.error = None, error
        return True

    def fail(self, why: str) -> None:
        """The state is not on disk; the first reason that is heard of counts."""
        self.error = self.error or why

    def drop(self) -> None:
        """Nobody keeps the state of this task: there is nobody to ask."""
        self.unsettled = None
