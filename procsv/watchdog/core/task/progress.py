"""Track the progress of a task: its steps, and the state that its next attempt can resume from.

Used by trainer.py. Pure. The members of a gang resume from the chief's state, so for them the
chief's progress counts. `SnapshotRecord` tracks the snapshots of a task. `ModelProgress` tracks a
model that several tasks train on parameter servers.
"""

from __future__ import annotations

from signal import SIGTERM

import msgspec

from procsv.base.cluster import PS
from procsv.base.journal.entries import SnapshotFailed
from procsv.base.outcome import NO_STEP, FitPlace, Loss, SaveHabit
from procsv.ipc.messaging.checkpoint_messages import Durable
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from procsv.watchdog.core.actions import Say
from procsv.watchdog.core.settings import Settings


class TaskProgress:
    def __init__(self, settings: Settings, *, keeps_state: bool) -> None:
        """`keeps_state`: this is the chief, whose state is saved."""
        self.keeps_state = keeps_state
        # Parameter servers hold the trained variables, so the end of an attempt loses no steps.
        self.outlives_attempts = any(task.role == PS for task in settings.tasks)
        self.step = NO_STEP  # the newest step seen, from any attempt
        self.own_step = NO_STEP  # the newest step seen from the running attempt, or from the last one
        self.offered_step = NO_STEP  # of the newest state that the attempt could restore when it started
        self.resumed_step = NO_STEP  # of the state that the running attempt resumed from, if known
        self.suspected_step = NO_STEP  # the next attempt must resume from an older state than this, if there is one
        self.avoided_step = NO_STEP  # the suspected_step that the running attempt was started with
        # The step at which this training began, perhaps in an earlier launch, and the step on disk.
        self.began_step, self.durable_step = settings.began_step, settings.saved_step
        self.steps_total = settings.launch.steps_total or NO_STEP
        self.habit: SaveHabit = settings.habit
        self._beat_step = NO_STEP  # from the attempt's last heartbeat
        self._has_begun_anew = False  # the program has reset its steps since the last save to disk
        self._stepped_s = 0.0  # when the attempt's last step was seen to end
        self._has_saved = False  # a save by request is on disk in this launch, so even step 0 may be trained state
        self.snapshots = SnapshotRecord()
        self.fit: FitPlace | None = None
        self.loss: Loss | None = None  # the fit's, reported by the running attempt
        self.importing = ""  # the package that the running attempt is importing
        self.phase: Phase | None = None
        self.is_kept_elsewhere = False  # its chief or the parameter servers keep its state, or it is itself a server
        self.handles = 0  # the signals that the attempt's program handles: bit N is signal N
        self.serving_s: float | None = None  # since when it serves variables to other tasks
        self.has_served = False  # it has served in this launch
        self.model: ModelProgress | None = None  # the model that it trains with others, on servers
        # How many steps of all tasks a loss of servers cost, as found when the running attempt restored that model.
        # None: not found yet, or this task is not the chief.
        self.steps_lost_with_servers: int | None = None

    @property
    def handles_stop(self) -> bool:
        """Whether the attempt's program has a SIGTERM handler of its own."""
        return bool(self.handles >> SIGTERM & 1)

    @property
    def resume_step(self) -> int:
        """The step that the next attempt resumes from.

        NO_STEP if there is no saved state, or if the program restores nothing. A checkpoint of an
        earlier launch counts, although procsv has seen only its name.
        """
        return NO_STEP if self.habit.restores is False else max(self.snapshots.memory_step, self.saved_step)

    @property
    def saved_step(self) -> int:
        """The step on disk that the next attempt can resume from.

        This is `durable_step`, with one exception. If the program has reset its steps since that
        save and a snapshot is in memory, the snapshot is the later state, although its step is
        lower. Then this is NO_STEP.
        """
        return NO_STEP if self._has_begun_anew and self.snapshots.memory_step >= 0 else self.durable_step

    @property
    def lost_steps(self) -> int:
        """How many steps the next attempt must redo.

        This is 0 if parameter servers hold the variables, or if the task is not the chief.
        """
        if self.outlives_attempts or not self.keeps_state:
            return 0
        return max(0, self.own_step - max(self.resume_step, 0))

    def unsaved_s(self, now_s: float) -> float | None:
        """Return the seconds of training since the last save, if each save counts as a step.

        That is so in a program without a step counter (SaveHabit). None in other programs, whose
        steps measure the loss.
        """
        return max(0.0, now_s - self._stepped_s) if self.habit.unit == "save" and self.own_step >= 0 else None

    def start_attempt(self, resumed_step: int) -> None:
        self.phase, self.own_step, self.resumed_step, self.handles = None, NO_STEP, resumed_step, 0
        self.loss, self.importing = None, ""
        self.offered_step, self._beat_step = max(self.snapshots.memory_step, self.saved_step), NO_STEP
        self.avoided_step, self.suspected_step = self.suspected_step, NO_STEP
        self.snapshots.start_attempt()

    def read_beat(self, beat: Heartbeat) -> bool:
        """Read a heartbeat. Return True if it is the first that shows the attempt serving."""
        begins_to_serve = beat.phase is Phase.SERVE and self.serving_s is None
        if begins_to_serve:
            self.serving_s, self.has_served, self.is_kept_elsewhere = beat.beat_s, True, True
        if beat.phase is Phase.CONNECT and beat.extended_s > beat.beat_s:
            self.is_kept_elsewhere = True  # it waits for its chief
        self.phase, self.handles = beat.phase, beat.handles
        if beat.step >= 0:
            if beat.step < self._beat_step:
                self._has_begun_anew, self.snapshots.taken_step = True, NO_STEP
            self._beat_step = beat.step
            if self.model is not None and beat.step != self.step:
                self.model.see(beat.step)
            if beat.step != self.own_step:
                self._stepped_s = beat.beat_s
            self.step = self.own_step = beat.step
        self.fit, self.loss, self.importing = beat.fit or self.fit, beat.loss, beat.importing
        return begins_to_serve

    def see_taken(self, step: int) -> None:
        """Note the step of the newest snapshot that a dead attempt has left.

        The attempt's last heartbeat may be older than that snapshot.
        """
        if step > self.own_step:
            self.step = self.own_step = step

    def recovered(self, first: FirstStepDone) -> None:
        """Note what the trainer reports once its first step has ended."""
        self.habit, self._stepped_s = first.habit, max(self._stepped_s, first.ended_s)
        self.step = self.own_step = max(self.own_step, first.step)
        self.is_kept_elsewhere = first.source in ("chief", "alive")
        if first.source == "checkpoint":
            self.durable_step, self._has_begun_anew = first.restored_step, False
        # A fresh start has restored nothing that could be to blame for a crash.
        self.resumed_step = NO_STEP if first.source == "fresh" else first.restored_step
        if self.began_step == NO_STEP or first.source == "fresh":
            self.began_step = first.restored_step
        self.steps_total = self.steps_total if first.steps_total < 0 else first.steps_total
        self.snapshots.recovered()
        if self.model is not None:
            self.steps_lost_with_servers = self._put_back(self.model, first)

    def _put_back(self, model: ModelProgress, first: FirstStepDone) -> int | None:
        """Return the lost steps of all tasks together; None if this task is not the chief."""
        if not self.keeps_state or first.source == "alive":
            model.see(first.step)
            return 0 if self.keeps_state else None
        return model.put_back(first.restored_step, first.step)

    @property
    def keeps_training(self) -> bool:
        """Whether the disk has trained state, not only the state with which training began."""
        return self.durable_step > 0 or (self.durable_step == 0 and self._has_saved)

    def durable(self, news: Durable) -> None:
        self._has_saved |= news.reason == "manual"
        if news.path in news.all_paths[-1:] or news.step > self.durable_step:  # otherwise the disk has a later state
            self.durable_step = news.step
            # If the program has not reached this step since it reset its steps, the state was saved before the reset.
            self._has_begun_anew &= news.step > self.own_step


class ModelProgress(msgspec.Struct):
    """The progress of a model that several tasks train on parameter servers.

    cluster.py makes one for a run with servers, and all training tasks share it. It counts the
    steps of all tasks, because the other tasks keep training while the chief is away: the chief's
    steps alone do not show what a lost server has cost. The last step read from a task may be half
    a second old, so the loss may be counted too low.
    """

    step: int = NO_STEP  # the highest step since the model was last restored
    _lost_at: int = NO_STEP  # the step that the model had when a server was lost; NO_STEP: none since the last restore

    def see(self, step: int) -> None:
        """Note a new step of a task.

        Do not call this again while the task's heartbeat shows the same step: the model may have
        been restored since, to an earlier step.
        """
        self.step = max(self.step, step)

    def server_lost(self) -> None:
        """Note that a server is lost at the current step. Later steps are not lost with it."""
        self._lost_at = max(self._lost_at, self.step)

    def put_back(self, restored_step: int, step: int) -> int:
        """Note that the chief has restored the model. Return how many steps the lost servers cost.

        `restored_step`: the step of the restored state. `step`: the first one that the chief made
        with it. The loss counts up to the step at which the servers were lost, because other tasks
        may already have made steps with the restored model.
        """
        reached, self.step, self._lost_at = self._lost_at, step, NO_STEP
        return max(0, reached - max(restored_step, 0)) if reached != NO_STEP else 0


class SnapshotRecord(msgspec.Struct):
    """The snapshots of one task: the newest in memory, the newest that was lost, and failures.

    The checkpoint service knows most of this. It does not know what happened before it was started,
    or which states never became a snapshot.
    """

    memory_step: int = NO_STEP  # of the newest snapshot in memory
    taken_step: int = NO_STEP  # of the newest snapshot that the trainer took, whether or not it still exists
    untaken: str = ""  # why recent snapshots failed; "" if they succeed
    last_untaken: str = ""  # why the trainer's last state was not captured; "" if that did not fail
    _lost_step: int = NO_STEP  # of a dead trainer's newest snapshot, if that is no longer in memory

    def start_attempt(self) -> None:
        self.taken_step, self.untaken, self.last_untaken = NO_STEP, "", ""

    def see_memory(self, step: int, trained_step: int) -> None:
        """Note the newest snapshot in memory. `trained_step`: the newest step of the trainer."""
        self.memory_step = step
        # A snapshot that is ahead of the running trainer is from an earlier one, whose state this trainer did not get.
        if step <= trained_step:
            self.taken_step = max(self.taken_step, step)

    def recovered(self) -> None:
        """Forget lost states: a trainer has resumed, so they no longer matter."""
        self.last_untaken, self._lost_step = "", NO_STEP

    def died(self, memory_step: int, has_saved: bool) -> None:
        """Note that the trainer is dead, and whether its newest snapshot is lost.

        `memory_step`: of the newest snapshot in memory. `has_saved`: the trainer ended by itself,
        with its last state saved.
        """
        self.memory_step = memory_step
        if not has_saved and memory_step < self.taken_step:
            self._lost_step = self.taken_step

    def failed(self, news: SnapshotFailed) -> list[Say]:
        """Report that the program's state could not be captured.

        A failure for the last state of a trainer is only noted: `lost` reports it at the end.
        """
        what = f"step {news.step} could not be captured: {news.error}"
        if news.is_last:
            self.last_untaken = what
            return []
        self.untaken = what
        return [Say(f"no snapshot: {what}; training continues, and procsv keeps trying", is_bad=True)]

    def resumed(self, step: int) -> Say:
        """Report that snapshots succeed again."""
        self.untaken = ""
        return Say(f"snapshots succeed again, from step {step} on")

    def lost(self, durable_step: int) -> str:
        """Return why the last state is not on disk, if the checkpoint service may not know that;
        otherwise "".
        """
        if self.last_untaken or self._lost_step <= durable_step:
            return self.last_untaken
        return f"step {self._lost_step} was only in memory, and is lost"
