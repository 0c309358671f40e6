"""End an attempt: ask it to end, kill it if it is late, and note when all of it is gone.

Used by trainer.py. Pure. The watchdog asks an attempt to end by a signal and by a message, which
mean the same. No other attempt starts while processes of a dead attempt remain.
"""

from __future__ import annotations

import signal

from procsv.base.grace import TRAINER_SHARE
from procsv.base.identity import TaskId
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.watchdog_messages import StopTraining
from procsv.watchdog.core.actions import Action, ClearTree, KillTree, Signal, Tell
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.settings import Settings

SERVERLESS_S = 5.0  # how long an attempt may take to end after its parameter server: nothing is left to save
TREE_S_MAX = 30.0  # a process that is still there this long after SIGKILL counts as unkillable


class Stopping:
    """End the running attempt, and the processes that it leaves."""

    def __init__(self, task: TaskId, settings: Settings) -> None:
        self._task, self._observes = task, settings.observes
        self._grace_s = settings.launch.grace_s
        self._own_grace_s: float | None = None  # the grace period of a preemption of this task
        self._is_serverless = False  # a parameter server that the attempt needs has ended
        self.reason: Reason = "final"  # what its last checkpoint records as the reason
        self.recycled = ""  # why it was asked to save and end for a restart; "": it was not
        self.we_killed = ""  # why the watchdog killed it; "": it did not
        self.is_told = False  # it was asked to end
        self.tree_is_gone = True
        self._kill_at_s: float | None = None  # when the attempt's time to end is over
        # When the watchdog began to kill the attempt, or what it has left. None: it did not, nothing is left, or TREE_S_MAX
        # is over.
        self._killed_s: float | None = None

    @property
    def stop_s(self) -> float:
        """How long the attempt may take to end.

        That is its share of the run's grace period; or, if this task alone is preempted, all of its
        own grace period.
        """
        stop_s = self._own_grace_s if self._own_grace_s is not None else self._grace_s * TRAINER_SHARE
        return min(stop_s, SERVERLESS_S) if self._is_serverless else stop_s

    @property
    def was_killed_late(self) -> bool:
        """Whether it was asked to end for a restart, and was killed because it was late."""
        return bool(self.recycled and self.we_killed)

    def start_attempt(self) -> None:
        self.we_killed, self.recycled, self.is_told = "", "", False
        self.reason, self._own_grace_s, self._is_serverless = "final", None, False

    def recycle(self, why: str) -> None:
        self.recycled, self.reason = why, "manual"

    def preempt(self, source: str, grace_s: float) -> None:
        self.recycled, self.reason, self._own_grace_s = f"preempted by {source}", "preempt", grace_s

    def lose_server(self, now_s: float) -> None:
        """Shorten the time to end: a parameter server that the attempt needs has ended.

        The attempt may wait for that server without end, so it is killed sooner.
        """
        if not self._is_serverless:
            self._is_serverless = True
            if self._kill_at_s is not None:
                self._kill_at_s = min(self._kill_at_s, now_s + self.stop_s)

    # -- its processes -------------------------------------------------------------------------------------
    def tell(self, incarnation: int, *, ends_run: bool, now_s: float) -> list[Action]:
        """Ask the attempt to end. A repeated request does not extend its time."""
        asked = Tell(self._task, StopTraining(self.stop_s, self.reason, ends_run))
        if self.is_told:
            return [asked]
        self.is_told, self._kill_at_s = True, now_s + self.stop_s
        if self._observes:  # an observed program has no handler of ours, so a signal would kill it
            return [asked]
        # A process that is stopped (SIGSTOP) receives the first signal only after the second.
        numbers = (signal.SIGTERM, signal.SIGCONT)
        return [asked, *(Signal(self._task, incarnation, number) for number in numbers)]

    def kill(self, incarnation: int, now_s: float) -> list[Action]:
        self._killed_s, self._kill_at_s = now_s, None
        return [KillTree(self._task, incarnation)]

    def clear(self, incarnation: int, now_s: float, *, has_ended: bool = False) -> list[Action]:
        """End what a dead attempt has left. `has_ended`: it ended normally by itself."""
        self.tree_is_gone, self._killed_s, self._kill_at_s = False, now_s, None
        return [ClearTree(self._task, incarnation, has_ended)]

    def note_cleared(self) -> bool:
        """Note that no process of the attempt is left. Return whether that is new."""
        was_left = not self.tree_is_gone
        self.tree_is_gone, self._killed_s = True, None if was_left else self._killed_s
        return was_left

    def never_began(self) -> None:
        """Drop the deadlines: the process was never started, so there is nothing to kill."""
        self._kill_at_s = self._killed_s = None

    # -- deadlines -----------------------------------------------------------------------------------------
    def take_overdue_stop(self, now_s: float, *, is_killed: bool) -> bool:
        """Return True once, when the time to end is over, and note why the attempt is killed.

        `is_killed`: a late attempt in this state is to be killed. If not, return True only for an
        observed program, which is not killed.
        """
        if self._kill_at_s is None or now_s < self._kill_at_s or not (is_killed or self._observes):
            return False
        self._kill_at_s = None
        if not self._observes:
            self.we_killed = wording.too_late(self._grace_s, self._own_grace_s)
            if self._is_serverless:
                self.we_killed = wording.too_late_without_server(self.stop_s)
        return True

    def take_surviving_tree(self, now_s: float) -> bool:
        """Return True once, when some process remains for too long after the kill."""
        if self._killed_s is None or now_s - self._killed_s < TREE_S_MAX:
            return False
        self._killed_s = None
        return True

    def dues_s(self) -> list[float | None]:
        return [self._kill_at_s, None if self._killed_s is None else self._killed_s + TREE_S_MAX]
