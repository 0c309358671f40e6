"""Watch the running trainer: whether it progresses, and what to report if it does not.

Used by trainer.py. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from procsv.base.identity import TaskId
from procsv.ipc.shm.heartbeat import Heartbeat
from procsv.watchdog.core.actions import Action, Say
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.trainer_liveness import Liveness
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.task.attempt_record import AttemptRecord
from procsv.watchdog.core.task.lifecycle import LIVE, LifecycleEvent, Reaction, TaskState
from procsv.watchdog.core.task.progress import TaskProgress
from procsv.watchdog.core.task.protection import Protection


@dataclass(slots=True)
class TrainerWatch:
    """`observes`: procsv did not start the program, and does not end it for a hang."""

    task: TaskId
    hanging: HangEscalation[Liveness]
    protection: Protection
    progress: TaskProgress
    record: AttemptRecord
    observes: bool
    _stalled_s: float = 0.0  # how long the observed program made no progress
    _is_suspected: bool = False  # suspected of doing nothing at all; reported once

    def watch_trainer(
        self,
        state: TaskState,
        incarnation: int,
        beat: Heartbeat | None,
        is_stopped: bool,
        activity: int | None,
        now_s: float,
    ) -> Reaction:
        """`activity`: of its processes, if they were checked."""
        wanted: list[Action] = []
        if is_stopped and state is TaskState.RUNNING:
            self.record.freeze(now_s)
        else:
            wanted += self.record.thaw(incarnation, now_s, is_running=state is TaskState.RUNNING)
        self.hanging.liveness.read_activity(activity, now_s)
        if self.hanging.is_found(beat, is_stopped, now_s):
            hang = self.hanging.hang
            if hang is not None and self.hanging.liveness.has_returned and not self.observes:
                wanted.append(Say(wording.lingers(hang.seconds)))
                # It saves and ends with the program's exit code, or is killed.
                return Reaction(wanted, LifecycleEvent.RECYCLE_ASKED)
            return Reaction(wanted, LifecycleEvent.STALLS if self.observes else LifecycleEvent.HANGS)
        if (news := self.hanging.liveness.take_too_short()) is not None:
            wanted.append(Say(wording.limit_doubled(news)))
        if state is TaskState.STALLED and (seconds := self.hanging.goes_on(beat, now_s)) is not None:
            self._stalled_s = seconds
            return Reaction(wanted, LifecycleEvent.MOVES)
        if state in LIVE and not self.observes:
            wanted += self._watch_without_session(incarnation, now_s)
        return Reaction(wanted)

    def _watch_without_session(self, incarnation: int, now_s: float) -> list[Action]:
        """Report what can be said about a program without a session. It may not be training, and is
        left alone.
        """
        wanted = self.protection.warn(self.task, incarnation, now_s) if self.progress.keeps_state else []
        hang = self.hanging.liveness.suspicion(now_s)
        if hang is not None and not self._is_suspected:
            self._is_suspected = True
            wanted += wording.does_nothing(self.task, incarnation, hang)
        return wanted

    def report_progress(self, incarnation: int) -> list[Action]:
        """A stalled program makes progress again."""
        return list(wording.goes_on(self.task, incarnation, self._stalled_s, self.progress.own_step))
