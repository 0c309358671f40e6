"""Hold the state of one task of a run, with read-only properties derived from it.

Pure. TrainerFacts is the base of TrainerSupervisor, which handles events. Code that shows a task,
or that decides for several tasks, reads it. LastSave tracks whether the last state is on disk.
"""

from __future__ import annotations

from random import Random

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP
from procsv.ipc.messaging import watchdog_messages
from procsv.ipc.shm.heartbeat import Phase
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
    """Whether the last state of the task is on disk.

    When an attempt has ended, the watchdog asks the checkpoint service (TrainerExited), and the
    service answers once the attempt's states are saved or cannot be saved. Until then, a task with
    too many failures is not given up, because the state that is being saved may be progress.
    """

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self.unsettled: watchdog_messages.TrainerExited | None = None  # the question; None once it is answered
        self.error = ""  # why the last state is not on disk; "" if it is, or if that is unknown
        # For the next question: gang members that resumed from the state at this step crashed repeatedly.
        self._avoid_step = NO_STEP

    def ask_about(self, incarnation: int, *, is_clean: bool) -> None:
        """Ask whether the last state of an attempt that has ended is on disk.

        `is_clean`: it completed, saved by itself, or was asked to end.
        """
        self.unsettled = watchdog_messages.TrainerExited(incarnation, is_clean, self._avoid_step, self._task)
        self._avoid_step = NO_STEP

    def avoid(self, step: int, incarnation: int, *, is_running: bool) -> None:
        """Ask the service to give the next attempt an older state than the one at `step`.

        If an attempt is still running, ask after its end.
        """
        if is_running:
            self._avoid_step = step
        else:
            self.unsettled = watchdog_messages.TrainerExited(incarnation, False, step, self._task)

    def flush_answered(self, of: watchdog_messages.TrainerExited, error: str) -> bool:
        """Note an answer. Return False, and change nothing, if it is not for the open question.

        `of`: the question that is answered. `error`: why the state cannot be saved; "" if it is on
        disk.
        """
        if self.unsettled is None or of.incarnation != self.unsettled.incarnation:
            return False
        self.unsettled, self.error = None, error
        return True

    def fail(self, why: str) -> None:
        """Note why the state is not on disk. Only the first reason is kept."""
        self.error = self.error or why

    def drop_question(self) -> None:
        """Drop the question: no service keeps the state of this task."""
        self.unsettled = None


class TrainerFacts:
    """The state of a task, through all its attempts."""

    def __init__(self, task: TaskId, incarnation: int, settings: Settings, rng: Random, now_s: float) -> None:
        self.task = task
        self.life = Lifecycle()
        self.progress = TaskProgress(settings, keeps_state=task == settings.tasks[0])
        self.stopping = Stopping(task, settings)
        self.next = NextStart(task, settings, rng, self.progress)
        self.record = AttemptRecord(task, settings, self.progress, self.stopping, self.next, now_s)
        liveness = Liveness(settings.launch, StepTimes(settings.learned_step_s))
        self.hanging = HangEscalation(task, liveness, settings.launch)
        self.protection = Protection(settings.launch)
        self.last_save = LastSave(task)
        self.incarnation = incarnation  # of the running trainer, or of the next one
        self.pid = 0
        self.restarts = 0
        self.got_notice = False  # the running attempt itself received a preemption notice, such as SIGTERM
        self.was_connected = False  # an attempt of this launch has sent its Hello, so there may be something to save
        # The task has ended and will not restart, or is unkillable while the run ends. If it is the chief, the run ends.
        self.ends_run = False
        self.deletes_logdir = False  # the program deletes the logdir, and the checkpoints in it, when it starts
        self.standby_wait_s = 0.0  # how long a due start waits for the host's standby
        self.standby_is_alive = False  # the process of the host's standby exists

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
        """The open question to the checkpoint service about the last trainer, if any."""
        return self.last_save.unsettled

    @property
    def unsaved(self) -> str:
        """Why the last trainer's newest state is not on disk; "" if it is, or nothing is known."""
        return self.last_save.error

    @property
    def step(self) -> int:
        """The newest step seen, from any attempt."""
        return self.progress.step

    @property
    def durable_step(self) -> int:
        return self.progress.durable_step

    @property
    def restart_s(self) -> float | None:
        """The monotonic time of the next start; None if no start is planned."""
        return self.next.due_s

    @property
    def gave_up(self) -> str:
        """Why procsv has given up the task; "" if it has not."""
        return self.next.gave_up

    # -- what is seen --------------------------------------------------------------------------------------
    @property
    def state_label(self) -> str:
        """The state of the task, as a word for people."""
        if self.is_serving:
            return "serving"
        awaits_first = self.life.state is TaskState.BACKOFF and self.record.last_death is None and self.standby_is_alive
        return (TaskState.IMPORTING if awaits_first else self.life.state).word

    @property
    def is_serving(self) -> bool:
        """Whether it is serving variables to other tasks."""
        return self.progress.serving_s is not None and self.life.state is TaskState.CONNECTED

    @property
    def is_before_session(self) -> bool:
        """Whether the running trainer has not asked for a session yet, so it has no state."""
        return bool(self.pid) and self.progress.own_step == NO_STEP and self.progress.phase in (None, Phase.IMPORT)

    @property
    def steps_per_s(self) -> float | None:
        """How many steps the task itself makes per second; None if it does not train, or too few
        steps were measured.
        """
        call_s = self.hanging.liveness.calls.median_s
        is_known = self.life.state is TaskState.RUNNING and call_s > 0.0
        return float(f"{1.0 / call_s:.4g}") if is_known else None

    def is_suspect(self, now_s: float) -> bool:
        """Whether the heartbeat of the running trainer has stopped.

        That does not prove a hang: the trainer may be in a long call that holds the GIL.
        """
        return bool(self.pid) and self.hanging.liveness.is_silent(now_s)

    def wants_activity(self, now_s: float) -> bool:
        """Whether it is time to check the activity of the trainer's processes."""
        return bool(self.pid) and self.life.is_live and self.hanging.liveness.wants_activity(now_s)

    @property
    def is_gone(self) -> bool:
        """Whether no process of the last attempt is left, and the task will be restarted."""
        return self.life.state is TaskState.BACKOFF and self.stopping.tree_is_gone and self.next.due_s is not None
