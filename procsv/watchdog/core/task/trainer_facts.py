"""Facts of one task of a run: the parts that keep it, among them the last save, and what they come to for whoever asks.

Base of TrainerSupervisor, which says what happens to it; read by whatever shows a task or decides for several.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.ipc.messaging import watchdog_messages
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.actions import Action
from procsv.watchdog.core.hangs.escalation import HangEscalation
from procsv.watchdog.core.hangs.trainer_liveness import Liveness, StepTimes
from procsv.watchdog.core.restarts.goodput import Goodput
from procsv.watchdog.core.restarts.restart_policy import History
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.attempt_record import AttemptRecord
from procsv.watchdog.core.task.lifecycle import Lifecycle, TaskState
from procsv.watchdog.core.task.next_start import NextStart
from procsv.watchdog.core.task.progress import SnapshotRecord, TaskProgress
from procsv.watchdog.core.task.protection import Protection
from procsv.watchdog.core.task.stopping import Stopping


class LastSave:
    """Of the newest attempt of `task` that has ended: what the checkpoint service is asked about the state that it left, and what it has answered.

    Whether to start again is not decided before the answer: what is being saved may be progress.
    """

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

    def flush_answered(self, of: watchdog_messages.TrainerExited, error: str) -> bool:
        """Whether this answers what is asked.  `error`: why the state cannot be saved; "" if it is on disk."""
        if self.unsettled is None or of.incarnation != self.unsettled.incarnation:
            return False
        self.unsettled, self.error = None, error
        return True

    def fail(self, why: str) -> None:
        """The state is not on disk; the first reason that is heard of counts."""
        self.error = self.error or why

    def nobody_keeps(self) -> None:
        """Nobody keeps the state of this task: there is nobody to ask."""
        self.unsettled = None


class TrainerFacts:
    """Of a task, through all its attempts.  `out` takes the actions of its parts."""

    def __init__(
        self,
        task: TaskId,
        incarnation: int,
        settings: Settings,
        rng: Random,
        now_s: float,
        out: list[Action],
        go_back: Callable[[int], None],
    ) -> None:
        """`go_back`: the state of that step is not to be resumed from again."""
        self.task = task
        self.life = Lifecycle()
        self.progress = TaskProgress(settings, keeps_state=task == settings.tasks[0])
        self.stopping = Stopping(task, settings, out)
        self.next = NextStart(task, settings, rng, self.progress, go_back, out)
        self.record = AttemptRecord(task, settings, self.progress, self.stopping, self.next, now_s, out)
        liveness = Liveness(settings.launch, StepTimes(settings.learned_step_s))
        self.hanging = HangEscalation(task, liveness, settings.launch, out)
        self.protection = Protection(settings.launch)
        self.last_save = LastSave(task)
        self.incarnation = incarnation  # of the trainer that runs, or of the next one
        self.pid = 0
        self.restarts = 0
        self.was_connected = False  # one of this launch has introduced itself: it may have left something to save
        self.ends_run = False
        self.deletes_logdir = False  # the program, at its start, with the checkpoints in it
        self.start_waits_s = 0.0  # when it is due, for what its host prepares
        self.host_prepares = False  # something, of which a process is there

    # -- its parts -----------------------------------------------------------------------------------------
    @property
    def history(self) -> History:
        return self.next.history

    @property
    def snapshots(self) -> SnapshotRecord:
        return self.progress.snapshots

    @property
    def goodput(self) -> Goodput:
        return self.record.goodput

    @property
    def unsettled(self) -> watchdog_messages.TrainerExited | None:
        """What the checkpoint service has still to answer of the last trainer."""
        return self.last_save.unsettled

    @property
    def unsaved(self) -> str:
        """Why the newest state of the last trainer is not on disk; "" if it is, or nobody knows yet."""
        return self.last_save.error

    @property
    def step(self) -> int:
        """The newest that was seen, of whichever attempt."""
        return self.progress.step

    @property
    def durable_step(self) -> int:
        return self.progress.durable_step

    @property
    def restart_s(self) -> float | None:
        """Monotonic time of the next start."""
        return self.next.due_s

    @property
    def gave_up(self) -> str:
        """Why it is not started again; "" if it may be."""
        return self.next.gave_up

    # -- what is seen --------------------------------------------------------------------------------------
    @property
    def state_label(self) -> str:
        """Its state as people read it."""
        if self.is_serving:
            return "serving"
        awaits_first = self.life.state is TaskState.BACKOFF and self.record.last_death is None and self.host_prepares
        return (TaskState.IMPORTING if awaits_first else self.life.state).word

    @property
    def is_serving(self) -> bool:
        """Whether it serves variables to others now."""
        return self.progress.serving_s is not None and self.life.state is TaskState.CONNECTED

    @property
    def is_before_session(self) -> bool:
        """Whether the trainer that runs has not asked for a session yet, so that it has no state of its own."""
        return bool(self.pid) and self.progress.own_step == NO_STEP and self.progress.phase in (None, Phase.IMPORT)

    @property
    def steps_per_s(self) -> float | None:
        """How many steps of its own the task that trains makes in a second; None as long as it does not, or nobody knows."""
        call_s = self.hanging.liveness.calls.median_s
        is_known = self.life.state is TaskState.RUNNING and call_s > 0.0
        return float(f"{1.0 / call_s:.4g}") if is_known else None

    def is_suspect(self, now_s: float) -> bool:
        """Whether its heartbeat has stopped.  Shown, and nothing else: it may be in a long call that holds the GIL."""
        return bool(self.pid) and self.hanging.liveness.is_silent(now_s)

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is to be looked whether its processes do anything."""
        return bool(self.pid) and self.life.is_live and self.hanging.liveness.wants_activity(now_s)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of its last attempt is left, and it is to be started again."""
        return self.life.state is TaskState.BACKOFF and self.stopping.tree_is_gone and self.next.due_s is not None
