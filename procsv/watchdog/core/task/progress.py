"""Progress of a task: how far it has come, as it shows, and what of that is kept for its next attempt; with its snapshots, and the model that
several tasks train.

Used by trainer.py; of a gang the chief's is what all go on from.  Pure.
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
        self._beat_step = NO_STEP  # as the attempt's last heartbeat said
        self._has_begun_anew = False  # the program has let its steps begin anew since what is on disk was saved
        self._stepped_s = 0.0  # when the attempt's last step was seen to have ended
        self._has_saved = False  # the program by itself, in this launch: it may count no steps
        self.snapshots = SnapshotRecord()
        self.fit: FitPlace | None = None
        self.loss: Loss | None = None  # of the fit, by the attempt that runs
        self.importing = ""  # a package, by the same
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
        return NO_STEP if self.habit.restores is False else max(self.snapshots.memory_step, self.saved_step)

    @property
    def saved_step(self) -> int:
        """As `durable_step`; NO_STEP where the steps have begun anew since, so that what is in memory is later, whatever its step."""
        return NO_STEP if self._has_begun_anew and self.snapshots.memory_step >= 0 else self.durable_step

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
        self.loss, self.importing = None, ""
        self.offered_step, self._beat_step = max(self.snapshots.memory_step, self.saved_step), NO_STEP
        self.avoided_step, self.suspected_step = self.suspected_step, NO_STEP
        self.snapshots.start_attempt()

    def read_beat(self, beat: Heartbeat) -> bool:
        """Reads a heartbeat; whether it serves from here on."""
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
        """The step of the newest snapshot that it has left: its heartbeat, which is written now and then, may say less."""
        if step > self.own_step:
            self.step = self.own_step = step

    def recovered(self, first: FirstStepDone) -> None:
        """The first step of an attempt has ended."""
        self.habit, self._stepped_s = first.habit, max(self._stepped_s, first.ended_s)
        self.step = self.own_step = max(self.own_step, first.step)
        self.is_kept_elsewhere = first.source in ("chief", "alive")
        if first.source == "checkpoint":
            self.durable_step, self._has_begun_anew = first.restored_step, False
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
            self._has_begun_anew &= news.step > self.own_step  # else it is of after that


class ModelProgress(msgspec.Struct):
    """How far the model that several tasks train on parameter servers has come, by the steps that are read of all who train it.

    Made by roster.py for runs with servers, and shared by the Progress of all who train; with what was taken back of it.  The chief
    alone cannot tell what a lost server has cost: the others train on while it is away.  Steps are as they were read last of each
    task, so that a loss may be counted half a second short.
    """

    step: int = NO_STEP  # the highest since it was put back last
    _lost_at: int = NO_STEP  # where it was when servers were lost, and it with them

    def see(self, step: int) -> None:
        """A step that is news: what is read of a task that has made none since may be from before the model was put back."""
        self.step = max(self.step, step)

    def server_lost(self) -> None:
        """What is trained from here on comes after the loss."""
        self._lost_at = max(self._lost_at, self.step)

    def put_back(self, restored_step: int, step: int) -> int:
        """The chief has put back the state of `restored_step`, and has made a first `step`; how many steps the lost servers have cost.

        The others may have trained on with it before the chief says so.
        """
        reached, self.step, self._lost_at = self._lost_at, step, NO_STEP
        return max(0, reached - max(restored_step, 0)) if reached != NO_STEP else 0


class SnapshotRecord(msgspec.Struct):
    """Record of the snapshots of one task's trainers, one after the other: the newest in memory, what went with its memory, and why none
    could be taken.

    The checkpoint service knows of most of this itself, but for what happened before it was started, and for states that never came as
    far as a snapshot.
    """

    memory_step: int = NO_STEP  # of the newest snapshot that is in memory now
    taken_step: int = NO_STEP  # of the newest that the trainer has taken, whether it is still there or not
    untaken: str = ""  # why there is no snapshot of late; "" if there is
    last_untaken: str = ""  # why the last state of the trainer that runs was never in memory
    _lost_step: int = NO_STEP  # of the newest snapshot of a trainer that died, and its memory with it

    def start_attempt(self) -> None:
        self.taken_step, self.untaken, self.last_untaken = NO_STEP, "", ""

    def see_memory(self, step: int, trained_step: int) -> None:
        """The step of the newest snapshot that is in memory now, and how far the trainer has come."""
        self.memory_step = step
        if step <= trained_step:  # else another's, of a state that was not resumed from
            self.taken_step = max(self.taken_step, step)

    def recovered(self) -> None:
        """A trainer has resumed from what there was: it has done without the rest."""
        self.last_untaken, self._lost_step = "", NO_STEP

    def died(self, memory_step: int, has_saved: bool) -> None:
        """`memory_step`: of what the dead trainer has left.  `has_saved`: it ended by itself, its last state in good hands."""
        self.memory_step = memory_step
        if not has_saved and memory_step < self.taken_step:
            self._lost_step = self.taken_step

    def failed(self, news: SnapshotFailed) -> list[Say]:
        """The program's state cannot be taken, of which the checkpoint service knows nothing."""
        what = f"step {news.step} could not be taken: {news.error}"
        if news.is_last:
            self.last_untaken = what
            return []
        self.untaken = what
        return [Say(f"no snapshot: {what}; training goes on, and so do the tries", is_bad=True)]

    def resumed(self, step: int) -> Say:
        """It can be taken again."""
        self.untaken = ""
        return Say(f"snapshots are taken again, from step {step} on")

    def lost(self, durable_step: int) -> str:
        """Why the last state is not on disk, as far as the checkpoint service may not know; "" if it is."""
        if self.last_untaken or self._lost_step <= durable_step:
            return self.last_untaken
        return f"step {self._lost_step} was in memory alone, and is lost from there"
