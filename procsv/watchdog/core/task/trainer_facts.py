"""Hold the state of one task of a run, with read-only properties derived from it.

The last save is part of it. Base of TrainerSupervisor, which handles events. Read by code that
shows a task or decides for several. Pure.
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
    """Whether the last state of the newest ended attempt is on disk: the question to the checkpoint
    service, and its answer.

    A task with too many failures is not given up before the answer, because the state that is
    being saved may be progress.
    """

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self.unsettled: watchdog_messages.TrainerExited | None = None  # the question without an answer yet
        self.error = ""  # why that state is not on disk
        self._avoid_step = NO_STEP  # a state from which another gang member resumed and crashed repeatedly

    def has_ended(self, incarnation: int, *, is_clean: bool) -> None:
        """The attempt left something to save. `is_clean`: it had saved by itself, or was asked to
        end.
        """
        self.unsettled = watchdog_messages.TrainerExited(incarnation, is_clean, self._avoid_step, self._task)
        self._avoid_step = NO_STEP

    def avoid(self, step: int, incarnation: int, *, is_running: bool) -> None:
        """Ask the service to give the next attempt a state before `step`. If an attempt is still
        running, ask after its end.
        """
        if is_running:
            self._avoid_step = step
        else:
            self.unsettled = watchdog_messages.TrainerExited(incarnation, False, step, self._task)

    def flush_answered(self, of: watchdog_messages.TrainerExited, error: str) -> bool:
        """Note an answer, and return whether it answers the open question. `error`: why the state
        cannot be saved; "" if it is on disk.
        """
        if self.unsettled is None or of.incarnation != self.unsettled.incarnation:
            return False
        self.unsettled, self.error = None, error
        return True

    def fail(self, why: str) -> None:
        """The state is not on disk, because of `why`. Only the first reason is kept."""
        self.error = self.error or why

    def nobody_keeps(self) -> None:
        """No service keeps the state of this task, so there is nothing to ask."""
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
        self.was_noticed = False  # the running attempt got a notice of its own, such as SIGTERM, which may end it
        self.was_connected = False  # a trainer of this launch has connected, and may have left something to save
        self.ends_run = False  # it has ended for good, or is unkillable while the run ends; if the chief, the run ends
        self.deletes_logdir = False  # the program deletes it at its start, with the checkpoints in it
        self.standby_wait_s = 0.0  # how long a due start waits for its host's standby
        self.standby_is_alive = False  # the host's standby has a process

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
        """The open question to the checkpoint service about the last trainer."""
        return self.last_save.unsettled

    @property
    def unsaved(self) -> str:
        """Why the last trainer's newest state is not on disk; "" if it is, or if that is unknown."""
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
        """The monotonic time of the next start."""
        return self.next.due_s

    @property
    def gave_up(self) -> str:
        """Why it is not restarted; "" if it may be."""
        return self.next.gave_up

    # -- what is seen --------------------------------------------------------------------------------------
    @property
    def state_label(self) -> str:
        """Its state as people read it."""
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
        """Whether the running trainer has not asked for a session yet, so that it has no state of
        its own.
        """
        return bool(self.pid) and self.progress.own_step == NO_STEP and self.progress.phase in (None, Phase.IMPORT)

    @property
    def steps_per_s(self) -> float | None:
        """How many steps of its own the task makes per second; None if it is not training, or that
        is unknown.
        """
        call_s = self.hanging.liveness.calls.median_s
        is_known = self.life.state is TaskState.RUNNING and call_s > 0.0
        return float(f"{1.0 / call_s:.4g}") if is_known else None

    def is_suspect(self, now_s: float) -> bool:
        """Whether its heartbeat has stopped. That does not prove a hang: it may be in a long call
        that holds the GIL.
        """
        return bool(self.pid) and self.hanging.liveness.is_silent(now_s)

    def wants_activity(self, now_s: float) -> bool:
        """Whether to check if its processes do anything."""
        return bool(self.pid) and self.life.is_live and self.hanging.liveness.wants_activity(now_s)

    @property
    def is_gone(self) -> bool:
        """Whether its last attempt is completely gone, and it will be restarted."""
        return self.life.state is TaskState.BACKOFF and self.stopping.tree_is_gone and self.next.due_s is not None
