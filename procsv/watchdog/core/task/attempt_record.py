"""Record a task's attempts: when each began to train, how it ended, and how much training it kept.

Used by trainer.py. Pure. The record also returns the actions that journal, print and report an end.
"Frozen" means here that a signal (SIGSTOP) has stopped the trainer.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from procsv.base.identity import TaskId
from procsv.base.journal import entries
from procsv.base.outcome import NO_STEP, LastExit
from procsv.base.units import show_duration
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.watchdog.core.actions import Action, Report, Say, WriteEntry
from procsv.watchdog.core.events import Ended
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.trainer_liveness import WITHOUT_SESSION, Liveness
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.restarts.causes import Cause, CauseKind, Known, find_end, name_failure
from procsv.watchdog.core.restarts.goodput import CountedAttempt, Goodput
from procsv.watchdog.core.restarts.restart_table import End
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.next_start import NextStart
from procsv.watchdog.core.task.progress import TaskProgress
from procsv.watchdog.core.task.stopping import Stopping


class AttemptRecord:
    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        progress: TaskProgress,
        stopping: Stopping,
        next_start: NextStart,
        now_s: float,
    ) -> None:
        self._task, self._progress, self._stopping, self._next = task, progress, stopping, next_start
        self._observes, self._is_detached = settings.observes, settings.launch.detach
        self.goodput = Goodput(now_s, settings.earlier)
        self.last_death: Ended | None = None
        self.last_exit: LastExit | None = None
        self._report: Report | None = None  # the report of the last end, until `tell_report` returns it
        self.last = CountedAttempt()  # the last attempt that ended
        # How long that attempt trained after its last save (TaskProgress.unsaved_s).
        self.unsaved_s: float | None = None
        self.end: End | None = None  # how the last attempt ended
        self._death_s = now_s  # when the last attempt ended; before that, when this launch started
        self._ready = 0  # the number of the newest attempt whose first step was reported
        self._frozen_s: float | None = None  # since when a signal has stopped the running trainer

    # -- while it runs -------------------------------------------------------------------------------------
    def ready(self, incarnation: int, first: FirstStepDone) -> list[Action]:
        """Report that the first step of this attempt has ended, unless that was reported before."""
        if self._ready == incarnation:
            return []
        self._ready = incarnation
        self.goodput.start_training(first.ended_s, first.step)
        ready = WriteEntry(entries.Ready(step=first.step), self._task, incarnation)
        steps_lost_with_servers = self._progress.steps_lost_with_servers
        recovered = entries.Recovered(
            step=first.restored_step,
            source=first.source,
            origin=first.origin,
            seconds=round(max(0.0, first.ended_s - self._death_s), 3),
            lost_steps=UNSET if steps_lost_with_servers is None else steps_lost_with_servers,
        )
        told: list[Action] = [ready, WriteEntry(recovered, self._task, incarnation)]
        if self._progress.keeps_state and not self._observes:
            progress = self._progress
            text = wording.training(
                first, self._death_s, self.last_exit, progress.steps_lost_with_servers, self.unsaved_s
            )
            suspected = progress.avoided_step
            if suspected != NO_STEP:
                text += wording.went_back(suspected, first.restored_step, progress.began_step)
            told.append(Say(text, is_bad=suspected != NO_STEP))
        return told

    def adopted(self, incarnation: int, now_s: float) -> None:
        """Note that the attempt is already training: a previous coordinator saw its first step."""
        self._ready = incarnation
        self.goodput.start_training(now_s, max(self._progress.durable_step, 0))

    @property
    def is_frozen(self) -> bool:
        """Whether a signal (SIGSTOP) has stopped the running trainer."""
        return self._frozen_s is not None

    def freeze(self, now_s: float) -> None:
        self._frozen_s = now_s if self._frozen_s is None else self._frozen_s

    def thaw(self, incarnation: int, now_s: float, *, is_running: bool) -> list[Action]:
        """Report that a frozen trainer goes on, and do not count the frozen time as training.

        Report nothing if the trainer was not frozen. Report nothing either if it has left the state
        RUNNING: it hung or was ended, and that is reported elsewhere.
        """
        since_s, self._frozen_s = self._frozen_s, None
        if since_s is None or not is_running:
            return []
        seconds = round(now_s - since_s, 3)
        self.goodput.stood_still(seconds)
        frozen = entries.Frozen(seconds=seconds, step=self._progress.own_step)
        text = f"the program goes on: a signal had stopped it for {show_duration(seconds)}"
        return [WriteEntry(frozen, self._task, incarnation), Say(text)]

    # -- its end -------------------------------------------------------------------------------------------
    def died(
        self, ended: Ended, pid: int, hanging: HangEscalation[Liveness], now_s: float, *, is_stopping: bool
    ) -> tuple[CauseKind, list[Action]]:
        """Record the end of the attempt. Return the kind of end, and the actions that report it.

        `is_stopping`: the attempt was asked to end.
        """
        progress, step = self._progress, self._progress.own_step
        known = Known(
            step,
            is_stopping=is_stopping,
            is_observed=self._observes,
            serves=progress.serving_s is not None,
            we_killed=self._stopping.we_killed,
            hang=hanging.evidence(ended.exit, ended.stacks),
            lost_peer=self._next.lost_peer,
            handles_stop=progress.handles_stop,
        )
        cause, kind = find_end(ended, known)
        self.last_exit = LastExit(ended.exit.code, ended.exit.signal_name, cause.word, cause.evidence, step)
        exited = entries.Exited(pid=pid, **msgspec.structs.asdict(self.last_exit))
        told: list[Action] = [WriteEntry(exited, self._task, ended.incarnation)]
        self.unsaved_s = None if kind in (CauseKind.DONE, CauseKind.CHECKPOINTED) else progress.unsaved_s(now_s)
        progress.snapshots.died(ended.memory_step, has_saved=kind in (CauseKind.DONE, CauseKind.CHECKPOINTED))
        self.last = self._count_attempt(ended, cause, kind, hanging, now_s)
        is_own = not (self._next.lost_peer or ended.lost)
        if cause.word not in ("completed", "stopped") and kind is not CauseKind.CHECKPOINTED and is_own:
            told += self._keep_report(ended, cause, pid)
        progress.serving_s = self._frozen_s = None
        self._death_s, self.last_death = now_s, ended
        self.end = self._name_end(kind)
        return kind, told

    def tell_report(self) -> list[Action]:
        """Return the crash report of the last end; nothing if there is none to send.

        Call this after the decision about the next start. That decision may make the state suspect
        from which the attempt resumed, and the report must say so.
        """
        report, self._report, progress = self._report, None, self._progress
        if report is None:
            return []
        lost_steps, resume_step, habit = progress.lost_steps, progress.resume_step, progress.habit
        lost = wording.lost(lost_steps, habit, self.unsaved_s)
        # The last heartbeat may show a session that was not seen while the attempt was alive.
        was_seen = progress.step != NO_STEP or report.step != NO_STEP
        resumes = wording.resumes(resume_step, habit, was_seen=was_seen)
        if progress.suspected_step != NO_STEP:
            resume_step, lost = NO_STEP, f"at least {lost}"
            resumes = f"from {wording.before_suspected(progress.suspected_step, habit)}"
        found = {"lost_steps": lost_steps, "resume_step": resume_step, "lost": lost, "resumes": resumes}
        return [msgspec.structs.replace(report, **found)]

    def _keep_report(self, ended: Ended, cause: Cause, pid: int) -> list[Action]:
        """Prepare the crash report for `tell_report`. Return what to print now about the end."""
        progress, step = self._progress, self._progress.own_step
        who = f"{self._task} {ended.incarnation} (pid {pid})"
        serves, habit = progress.serving_s is not None, progress.habit
        has_session = progress.phase not in WITHOUT_SESSION
        what = wording.sentence(cause.word, cause.evidence, step, serves=serves, habit=habit, has_session=has_session)
        self._report = Report(ended, cause, f"{who} {what}", step, 0, NO_STEP)
        if self._observes and ended.words:
            return []  # an observed program's terminal already shows its own error
        is_shown = ended.words is not None and ended.words.is_shown and not self._is_detached
        return self._next.keep_end(f"{who} ended with the error above" if is_shown else f"{who} {what}")

    def _name_end(self, kind: CauseKind) -> End:
        if kind is CauseKind.DONE:
            return End.FINISHED
        return End.RETURNED if kind is CauseKind.CHECKPOINTED or self._stopping.was_killed_late else End.DIED

    def _count_attempt(
        self, ended: Ended, cause: Cause, kind: CauseKind, hanging: HangEscalation[Liveness], now_s: float
    ) -> CountedAttempt:
        """Return how long the attempt lasted, how much training it kept, and what ended it."""
        progress, hang = self._progress, hanging.name_failure(ended.stacks) if cause.word == "hang" else ""
        if hang:
            self.goodput.stood_still(hanging.stood_still_s(now_s))
        kept_step = progress.own_step if kind is CauseKind.DONE else progress.resume_step
        kept_s = self.goodput.end_training(now_s, progress.own_step, kept_step, self.unsaved_s)
        if progress.serving_s is not None:  # for a server, the time that it served counts
            kept_s = self._next.history.end_serving(now_s - progress.serving_s)
        is_planned = kind is CauseKind.CHECKPOINTED or self._stopping.was_killed_late
        failure = "" if is_planned else name_failure(cause, ended.exit, ended.words, hang)
        return CountedAttempt(now_s - self._death_s, kept_s, failure, cause.word == "oom")
