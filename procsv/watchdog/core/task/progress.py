"""Progress of a task: how far it has come, as it shows, and what of that is kept for its next attempt.

Used by trainer.py; of a gang the chief's is what all go on from.  Pure.
"""

from __future__ import annotations

from signal import SIGTERM

from procsv.base.cluster import PS
from procsv.base.outcome import NO_STEP, FitPlace, SaveHabit
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.settings import Settings
from procsv.watchdog.core.task.model_progress import ModelProgress
from procsv.watchdog.core.task.snapshot_record import SnapshotRecord


class Progress:
    def __init__(self, settings: Settings, *, keeps_state: bool) -> None:
        """`keeps_state`: it is the task whose state is saved; of the others nothing is."""
        self.keeps_state = keeps_state
        self.outlives_attempts = any(task.role == PS for task in settings.tasks)  # servers have the variables
        self.step = NO_STEP  # of whichever attempt
        self.own_step = NO_STEP  # as read from the attempt that runs, or ran last
        self.offered_step = NO_STEP  # of the state that was there for it to restore
        self.resumed_step = NO_STEP  # what the attempt that runs goes on from, as far as is known
        self.suspected_step = NO_STEP  # the next attempt is to resume from a state before it, if there is one
        self.avoided_step = NO_STEP  # the same, of the attempt that runs
        self.began_step, self.durable_step = settings.began_step, settings.saved_step
        self.steps_total = settings.launch.steps_total or NO_STEP
        self.habit: SaveHabit = settings.habit
        self._stepped_s = 0.0  # when the attempt's last step was seen to have ended
        self._has_saved = False  # the program by itself, in this launch: it may count no steps
        self.snapshots = SnapshotRecord()
        self.fit: FitPlace | None = None
        self.phase: Phase | None = None
        self.is_kept_elsewhere = False  # by another run's chief, or servers; or it is a server, filled by a chief
        self.handles = 0  # the signals that the program of the attempt has a handler of its own for
        self.serving_s: float | None = None  # since when it serves variables to others
        self.has_served = False  # in this launch
        self.model: ModelProgress | None = None  # that it trains with others, on servers
        self.taken_back: int | None = None  # steps of all tasks, by the attempt that runs as it put that model back

    @property
    def handles_stop(self) -> bool:
        """Whether the program of the attempt has a handler of its own for SIGTERM."""
        return bool(self.handles >> SIGTERM & 1)

    @property
    def resume_step(self) -> int:
        """The step that the next attempt resumes from; what an earlier launch left counts, though only seen by name."""
        return NO_STEP if self.habit.restores is False else max(self.snapshots.memory_step, self.durable_step)

    @property
    def lost_steps(self) -> int:
        """What the next attempt has to do again: nothing, if others have the variables, or their state is saved."""
        if self.outlives_attempts or not self.keeps_state:
            return 0
        return max(0, self.own_step - max(self.resume_step, 0))

    def unsaved_s(self, now_s: float) -> float | None:
        """Seconds of training since the last save, where a step is a save; None where steps tell what was lost."""
        return max(0.0, now_s - self._stepped_s) if self.habit.unit == "save" and self.own_step >= 0 else None

    def start_attempt(self, resumed_step: int) -> None:
        self.phase, self.own_step, self.resumed_step, self.handles = None, NO_STEP, resumed_step, 0
        self.offered_step = max(self.snapshots.memory_step, self.durable_step)
        self.avoided_step, self.suspected_step = self.suspected_step, NO_STEP
        self.snapshots.start_attempt()

    def read(self, beat: Heartbeat) -> bool:
        """Reads a heartbeat; whether it serves from here on."""
        begins_to_serve = beat.phase is Phase.SERVE and self.serving_s is None
        if begins_to_serve:
            self.serving_s, self.has_served, self.is_kept_elsewhere = beat.beat_s, True, True
        if beat.phase is Phase.CONNECT and beat.extended_s > beat.beat_s:
            self.is_kept_elsewhere = True  # it waits for its chief
        self.phase, self.handles = beat.phase, beat.handles
        if beat.step >= 0:
            if self.model is not None and beat.step != self.step:
                self.model.see(beat.step)
            if beat.step != self.own_step:
                self._stepped_s = beat.beat_s
            self.step = self.own_step = beat.step
        self.fit = beat.fit or self.fit
        return begins_to_serve

    def see_taken(self, step: int) -> None:
        """The step of the newest snapshot that it has left: its heartbeat, which is written now and then, may say less."""
        if step > self.own_step:
            self.step = self.own_step = step

    def recovered(self, first: FirstStepDone) -> None:
        """The first step of an attempt has ended."""
        self.habit, self._stepped_s = first.habit, max(self._stepped_s, first.ended_s)
        self.step = self.own_step = max(self.own_step, first.step)
        self.is_kept_elsewhere = first.source in ("chief", "alive")
        if first.source == "checkpoint":
            self.durable_step = first.restored_step
        self.resumed_step = first.restored_step
        if self.began_step == NO_STEP or first.source == "fresh":
            self.began_step = first.restored_step
        self.steps_total = self.steps_total if first.steps_total < 0 else first.steps_total
        self.snapshots.recovered()
        if self.model is not None:
            self.taken_back = self._put_back(self.model, first)

    def _put_back(self, model: ModelProgress, first: FirstStepDone) -> int | None:
        """None of a task that puts nothing back."""
        if not self.keeps_state or first.source == "alive":
            model.see(first.step)
            return 0 if self.keeps_state else None
        return model.put_back(first.restored_step, first.step)

    @property
    def keeps_training(self) -> bool:
        """Whether something that was trained is on disk: more than the state that a training begins with."""
        return self.durable_step > 0 or (self.durable_step == 0 and self._has_saved)

    def durable(self, news: Durable) -> None:
        self._has_saved |= news.reason == "manual"
        if news.path in news.all_paths[-1:] or news.step > self.durable_step:  # else a later state was there already
            self.durable_step = news.step
