"""Control the training of an eager program: procsv's side of a CheckpointManager or a Keras fit.

The controller connects the process to the run, and tells the checkpoint service how checkpoints are
named and kept. It restores the newest state and sets up the step boundary. Its owner, the manager
or the fit, reports the end of each step at the boundary. When the program ends, the controller
saves the last state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from procsv.base.errors import UserError
from procsv.base.outcome import SaveHabit
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Durable, Restored
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.eager.state import EagerState
from procsv.training.runtime.context import Runtime, watched
from procsv.training.runtime.log import log
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.restore_client import FRESH, Origin, ask_newest, introduce_plan, restore_newest
from procsv.training.snapshots.snapshot_queue import Record
from procsv.training.snapshots.training_run import TrainingRun


class EagerController:
    """Controls one training at a time, between `start_training` and `end_training`."""

    def __init__(
        self,
        runtime: Runtime,
        plan: CheckpointPlan,
        snapshot_s: float | None,
        make_source: Callable[[], EagerState],
        on_durable: Callable[[Durable], None],
        restores: Callable[[bool], bool | None] = lambda _: True,
    ) -> None:
        """Prepare to train; `enter_run` connects to the run.

        `snapshot_s` is the time between snapshots in seconds. If it is None, the time follows from
        what snapshots cost. If it is 0.0, snapshots are taken only for saves.

        If training starts without `restore`, the controller calls `restores(is_new)` to learn
        whether the program restores checkpoints by itself. None means unknown. If `is_new` is
        False, there is a checkpoint, and the answer says whether the program has restored it. If
        `is_new` is True, there is no usable checkpoint, and the answer says whether the program
        would have restored one.
        """
        self.runtime, self.plan = runtime, plan
        self.training: TrainingRun | None = None
        self._snapshot_s, self._make_source, self._on_durable = snapshot_s, make_source, on_durable
        self._restores = restores
        self._is_in_run = False
        self._has_trained = False
        self.on_replaced: Callable[[], None] | None = None  # `give_way` calls it; None: never give way
        self._saved_runs = -1  # how many steps had ended at the program's last save
        self._restored_step: int | None = None  # the step of the checkpoint that the training began from
        self._found: Origin | None = None  # the newest checkpoint, if the program restores by itself

    # -- beginning -------------------------------------------------------------------------------------------
    def enter_run(self) -> None:
        """Connect to the run, unless this controller is already connected.

        An earlier training in the same directory gives way if it can. Raise UserError if another
        training of this process is still in the run.
        """
        if self._is_in_run:
            return
        if not self.can_enter():
            self._end_earlier()
        if not self.can_enter():
            raise UserError(
                "this process already trains under procsv, which supervises one training at a time: end that one "
                "first (`close()` of a CheckpointManager), or use tf.train.CheckpointManager for this directory"
            )
        self.runtime.acquire_run()
        self._is_in_run = True
        self.runtime.set_owner(self)
        self.runtime.begin_session(self.save_last_state)
        if self.keeps_state:
            introduce_plan(self.runtime, self.plan)
        self.runtime.connection.start_link()

    def _end_earlier(self) -> None:
        """End the training of an earlier manager of this directory.

        A notebook cell that runs again makes a second manager.
        """
        for one in (self.runtime, *watched()):
            owner = one.owner
            if isinstance(owner, EagerController) and owner is not self and owner.directory == self.directory:
                owner.give_way()

    @property
    def directory(self) -> Path:
        """The directory of the checkpoints."""
        return Path(os.path.realpath(self.plan.save_path)).parent

    def give_way(self) -> None:
        """End this training so that another can start.

        Do nothing if `on_replaced` is None, or on any other thread than the training thread. The
        program may be in the middle of a step, so this takes no further snapshot. It waits until
        the newest requested snapshot is on disk.
        """
        on_end, training = self.on_replaced, self.training
        if on_end is None or (training is not None and threading.get_ident() != training.boundary.thread):
            return
        log.warning(
            "procsv: the program now uses another CheckpointManager for %s: the training of the previous one has ended",
            self.directory,
        )
        on_end()
        if training is not None and self.keeps_state:
            training.wait_asked(training.final_save_s())
        self.end_training()
        if self.runtime.observer is not None:  # the observer must not record this run as complete
            self.runtime.record_failure(KeyboardInterrupt())
        self.leave_run()

    @property
    def keeps_state(self) -> bool:
        """Whether this process saves its state.

        Of tasks that train in step, only the chief saves: they all have the same state.
        """
        return self.runtime.connection.start.is_chief

    def can_enter(self) -> bool:
        """Return whether this run is free: no training of this process is in it or its logdir."""
        others = [one for one in watched() if one is not self.runtime]
        is_taken = any(one.connection.paths.logdir == self.runtime.connection.paths.logdir for one in others)
        return not is_taken and self.runtime.training is None and self.runtime.owner in (None, self)

    def find_newest(self) -> Origin:
        """Return the newest checkpoint, for a program that restores by itself.

        If a crash left a newer state in memory, the checkpoint service writes it to disk first. If
        there is no state, the source of the result is "fresh".
        """
        self.enter_run()
        if self._found is None:
            answer = ask_newest(self.runtime, durable_only=True)
            self._found = Origin(answer.source, answer.path, answer.step, tuple(answer.all_paths))
        return self._found

    def restore(self) -> Origin:
        """Restore the newest state and start the training. Return FRESH if there is no state."""
        self.enter_run()
        source = self._make_source()
        origin = restore_newest(self.runtime, source)
        self.start_with(source, origin)
        if origin.source == "checkpoint":
            self._restored_step = source.read_step()
        return origin

    def start_training(self) -> None:
        """Start the training with the state that the program has now.

        The program may have restored this state by itself.
        """
        self.enter_run()
        if not self.keeps_state:
            self.start_with(self._make_source(), FRESH)
            return
        try:
            found = self.find_newest()
        except UserError as why:  # a program that restores nothing may train beside unusable checkpoints
            log.error("procsv: training goes on, and its saves may fail: %s", why)
            found = FRESH
        # If this manager has trained before, the program still has the state of that training.
        restores = self._has_trained or self._restores(found.source == FRESH.source)
        self.runtime.connection.tell_checkpoint(Restored())
        source = self._make_source()
        if restores and found.path:
            source.goes_on_from(found.path)
        self.start_with(source, found if restores else FRESH)
        assert self.training is not None, "it has just been started"
        self.training.habit = SaveHabit("step", restores)

    def find_state(self, source: EagerState) -> Origin:
        """Restore the newest state into `source`, whose training starts later.

        Return where the state came from; FRESH if there is none.
        """
        self.enter_run()
        return restore_newest(self.runtime, source)

    def start_with(self, source: EagerState, origin: Origin, has_snapshots: bool = True) -> None:
        """Start the training of `source`, whose state came from `origin`.

        Without `has_snapshots`, and in tasks whose state is not saved, no snapshot is taken.
        """
        has_snapshots = has_snapshots and self.keeps_state
        cadence = Cadence(self._snapshot_s, at_most_s=self.plan.save_secs) if has_snapshots else None
        training = TrainingRun(self.runtime, source, origin, cadence, self._on_durable)
        training.start_training()
        training.boundary.begin_steps()
        self._saved_runs, self._restored_step = -1, None
        self._has_trained = True
        self.training = training  # from here on, steps can end
        if training.snapshots is not None:
            training.snapshots.start_cadence()

    def check_thread(self) -> None:
        """Raise UserError on any other thread than the training thread, for `step` and `save`."""
        if self.training is not None and threading.get_ident() != self.training.boundary.thread:
            raise UserError("call step() and save() on the training thread: on any other the state may be incomplete")

    # -- saving ----------------------------------------------------------------------------------------------
    def save(self) -> Record:
        """Capture the state for a checkpoint. If that fails, the record's `failure` says why."""
        assert self.training is not None
        assert self.training.snapshots is not None
        self._saved_runs = self.training.boundary.runs
        return self.training.snapshots.capture_async("manual")

    def wait_saved(self, record: Record) -> str:
        """Wait until `record` is a checkpoint on disk. Return "" then, or why it is not saved."""
        assert self.training is not None
        snapshots = self.training.snapshots
        assert snapshots is not None
        with self.runtime.heartbeat.saving():
            if record.failure is None and snapshots.wait_settled(record, self.training.final_save_s()):
                return ""
        failed = snapshots.last_failure
        return str(record.failure or (failed.error if failed else "the checkpoint service did not answer in time"))

    def wait_asked(self) -> None:
        """Wait until the program's newest save is on disk or has failed."""
        asked = self.training.snapshots.asked if self.training is not None and self.training.snapshots else None
        if asked is not None:
            self.wait_saved(asked)

    # -- the end ---------------------------------------------------------------------------------------------
    def save_last_state(self) -> None:
        """Save the last state, unless the program has, and end the training.

        A program that ended with an error may have been in the middle of a step. Then its newest
        snapshot is kept instead. On any other thread than the training thread, this only warns.
        """
        training = self.training
        if training is None:
            return
        if threading.get_ident() != training.boundary.thread:
            log.warning(
                "procsv: the last state is not saved, because the training thread has not closed its CheckpointManager"
            )
            return
        if not self.keeps_state:
            pass  # the chief saves
        elif self.runtime.failure is None and not self._is_saved(training):
            training.save(self._last_reason(), training.final_save_s())
        else:
            training.wait_asked(training.final_save_s())
        self.end_training()

    def _is_saved(self, training: TrainingRun) -> bool:
        """Return whether the program has already asked to save this very state, or restored it."""
        runs = training.boundary.runs
        return runs == self._saved_runs or (runs == 0 and training.read_step() == self._restored_step)

    def _last_reason(self) -> Reason:
        return self.runtime.stops.reason or "final"

    def end_training(self) -> None:
        training, self.training = self.training, None
        if training is not None:
            training.end_training()
            # Not before end_training: once this frees the lock, another thread could capture a snapshot in mid-step.
            training.boundary.leave_steps()
            self.runtime.heartbeat.enter_phase(Phase.PROGRAM)  # from here on the program's own work may take any time

    def leave_run(self) -> None:
        """Disconnect from the run. Without `procsv launch`, that ends the run."""
        if self._is_in_run:
            self._is_in_run, self._found = False, None
            self.runtime.set_owner(None)
            self.runtime.end_session()
            self.runtime.release_run()


def seconds_of(snapshot_secs: SnapshotSecs, runtime: Runtime) -> float | None:
    """Return the seconds between snapshots: None for auto, 0.0 for snapshots only at saves.

    Raise ValueError if `snapshot_secs` is none of the allowed values.
    """
    told: Any = runtime.connection.told_snapshot_s if snapshot_secs is FROM_COMMAND_LINE else snapshot_secs
    if told == "auto":
        return None
    if told is None or told == 0:
        return 0.0
    if isinstance(told, bool) or not isinstance(told, int | float) or told < 0:
        raise ValueError(
            f'snapshot_secs is {told!r}; pass "auto", seconds, or None for no snapshots between the program\'s saves'
        )
    return float(told)
