"""CheckpointManager: TensorFlow's, whose `save` costs a capture, with snapshots between the saves.

A program makes one, restores, trains, and says after each step that it has ended.  What is written is what TensorFlow's own
manager would have written, under the same names, and a program without procsv goes on from it.
"""

from __future__ import annotations

import collections
import inspect
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.run.paths import anchor
from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan, Durable
from procsv.ipc.shm.slot_index import checkpoint_prefix
from procsv.training.eager import private, replicas
from procsv.training.eager.controller import EagerController, seconds_of
from procsv.training.eager.event_files import EventFiles
from procsv.training.eager.state import EagerState
from procsv.training.runtime.context import current
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions.attach import attach
from procsv.training.snapshots.boundary import Boundary

KEEP_ALL = 2**31 - 1


class CannotSave(UserError, tf.errors.FailedPreconditionError):
    """TensorFlow cannot save what the Checkpoint tracks: the same at each start, so the program is not started again."""

    def __init__(self, what: str, error: Any) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, f"{why_unsavable(what, error)}. {CURE}")
        self.exit_code = exit_codes.USAGE


CURE = (
    "Leave it out, and after a restore skip the batches that are done; or make the data without Python "
    "functions (tf.data.Dataset.from_generator, tf.py_function)"
)


def why_unsavable(what: str, error: Any) -> str:
    """`error`: TensorFlow's, which names its op before and after what has happened."""
    told = error.message.rpartition("}} ")[2].partition(" [Op:")[0].strip().rstrip(".")
    return f"TensorFlow cannot save '{what}' of the tf.train.Checkpoint: {told}"


class CheckpointManager(tf.train.CheckpointManager):
    """`tf.train.CheckpointManager` for a training that goes on when its process does not.

    manager = procsv.CheckpointManager(tf.train.Checkpoint(step=step, model=model, optimizer=optimizer))
    manager.restore_or_initialize()
    while int(step) < STEPS and not manager.should_stop():
        train(next(batches))
        step.assign_add(1)
        manager.step()                    # a snapshot in shared memory, when one is due
        if int(step) % 1000 == 0:
            manager.save()                # returns at once; the checkpoint service writes the files
    manager.close()
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: Any = None,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Any = None,
        last_checkpoint_step: int | None = None,
        *,
        snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
    ) -> None:
        """Arguments as TensorFlow's, and one more.

        Args:
            directory: None is the run's logdir, under `procsv launch`.
            step_counter: The variable that counts steps; without one the calls of `step` are counted.
            snapshot_secs: Seconds between snapshots in memory, "auto" for as often as they cost one percent of the time, None
                for none between the saves.  By default `procsv launch --snapshot-secs` decides.
        """
        if not tf.executing_eagerly():
            raise UserError("procsv.CheckpointManager needs eager execution; in graph mode use procsv.Supervisor")
        if directory is not None and local_path(directory) is None:
            raise UserError(
                f"procsv.CheckpointManager keeps its checkpoints on a local filesystem, and {directory} is none: use a local "
                "directory, or tf.train.CheckpointManager"
            )
        launched = current()
        if launched is not None and not launched.connection.start.is_chief:
            directory = None  # nothing is saved there: the chief's is the run's
        runtime, used = attach(None if directory is None else os.fspath(directory), may_save=True)
        if runtime is None:
            raise UserError("name the directory of the checkpoints: procsv.CheckpointManager(checkpoint, directory)")
        super().__init__(
            checkpoint,
            used,
            max_to_keep,
            keep_checkpoint_every_n_hours,
            checkpoint_name,
            step_counter,
            checkpoint_interval,
            init_fn,
        )
        self._last_checkpoint_step = last_checkpoint_step  # which older versions do not take
        self._counter = step_counter
        self._saving: int | None = None  # the number of the checkpoint that the program saves just now
        self._boundary: Boundary | None = None
        self._is_closed = False  # what there is is as it was then
        self._has_looked = False  # for a checkpoint, before the training
        self._thread = 0
        plan = CheckpointPlan(
            save_path=anchor(self._prefix),  # the program may change its directory
            latest_filename="checkpoint",
            save_secs=0.0,
            max_to_keep=max_to_keep or KEEP_ALL,
            keep_every_n_hours=float(keep_checkpoint_every_n_hours or KEEP_NEVER_HOURS),
            pad_step_number=False,
            save_relative_paths=True,
            meta_path="",
            keep_from=self._last_preserved_timestamp if keep_checkpoint_every_n_hours else 0.0,
            lists_times=True,
        )
        snapshot_s = seconds_of(snapshot_secs, runtime)
        self._controller = EagerController(
            runtime, plan, snapshot_s, self._make_source, self._note_durable, self._restores
        )
        self._events = EventFiles(runtime)
        self._controller.on_given_way = self._forget_steps
        replicas.watch_reads(private.saved_by(checkpoint))

    def _make_source(self) -> EagerState:
        checkpoint = private.saved_by(self.checkpoint)
        if (unsavable := private.find_unsavable(checkpoint)) is not None:
            raise CannotSave(*unsavable)
        _ = checkpoint.save_counter  # made now, it is in the first snapshot and is restored with it
        read_step = None if self._counter is None else lambda: private.count_of(self._counter)
        return EagerState(checkpoint, self._controller.plan, self._next_number, read_step, self._events)

    def _restores(self, is_new: bool) -> bool | None:
        """Whether the program restores by itself; of a new training, whether it has looked for something to restore: None if not."""
        return (self._has_looked or None) if is_new else private.was_restored(private.saved_by(self.checkpoint))

    def _next_number(self) -> int:
        """The number of a checkpoint of this moment: where the program does not save, the one that its next save has."""
        return private.count_of(self.checkpoint.save_counter) + 1 if self._saving is None else self._saving

    # -- the training ----------------------------------------------------------------------------------------
    def restore_or_initialize(self) -> Any:
        """Puts the newest state back, of memory or disk; else calls `init_fn`.  The training starts here.

        The path of the restored checkpoint, as it is called when it is on disk; None if there is no state yet.
        """
        if self._boundary is not None:
            self._wait_saved()
            return super().restore_or_initialize()
        origin = self._controller.restore()
        self._begin_steps()
        if origin.source == "fresh":
            if self._init_fn is not None:
                self._init_fn()
            return None
        if self._checkpoint_interval is not None:
            self._last_checkpoint_step = private.count_of(self._step_counter)
        if origin.source == "checkpoint":
            return self._as_named(origin.path)
        return checkpoint_prefix(self._controller.plan, self._next_number())

    def step(self) -> None:
        """A step has ended, and the state is whole: a snapshot is taken if one is due.  Costs about a microsecond if none is."""
        boundary = self._boundary
        if boundary is None:
            boundary = self._start()
        elif threading.get_ident() != self._thread:
            self._controller.check_thread()
        boundary.end_step()

    def should_stop(self) -> bool:
        """Whether the run is asked to save and end: the state of the next `step` is saved, and the loop should end."""
        return self._controller.runtime.stops.reason is not None

    def _start(self) -> Boundary:
        self._controller.start_training()
        return self._begin_steps()

    def _begin_steps(self) -> Boundary:
        training = self._controller.training
        assert training is not None
        self._boundary, self._thread, self._is_closed = training.boundary, training.boundary.thread, False
        return self._boundary

    def _forget_steps(self) -> None:
        self._boundary, self._is_closed = None, True

    def close(self) -> None:
        """Saves the last state, unless that is saved, and ends the training; the end of the program does so, too."""
        self._controller.save_last_state()
        self._forget_steps()
        self._controller.leave_run()

    def __enter__(self) -> Self:
        self._controller.on_given_way = None  # the block ends it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it; after an error in the block, perhaps in the middle of a step, the newest snapshot counts."""
        runtime = self._controller.runtime
        runtime.record_failure(error)
        self.close()

    # -- saving ----------------------------------------------------------------------------------------------
    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None, *, wait: bool = False
    ) -> Any:
        """Captures the state and returns at once, with the path of the checkpoint that the service makes from it.

        Returns None if the interval is not over, or if nothing could be captured; the log says why.

        Args:
            wait: Return when the checkpoint is on disk and verified.

        Raises:
            OSError: With `wait`: the checkpoint is not saved, and why.
        """
        if self._boundary is None:
            self._start()
        self._controller.check_thread()
        if not self._is_due(check_interval):
            return None
        self.checkpoint.save_counter.assign_add(1)
        number = self.checkpoint.save_counter if checkpoint_number is None else checkpoint_number
        self._saving = private.count_of(number)
        try:
            path = f"{self._prefix}-{self._saving}"
            if not self._controller.keeps_state:
                return path  # of the chief, which saves it at the same step
            record = self._controller.save()
        finally:
            self._saving = None
        callbacks = getattr(options, "experimental_write_callbacks", None) or []
        if wait or callbacks:
            error = self._controller.wait_saved(record)
            if error:
                raise OSError(f"{path} is not saved: {error}")
        for callback in callbacks:
            callback(*(path,) * len(inspect.signature(callback).parameters))  # TensorFlow's may take it, or nothing
        return None if record.failure is not None else path

    def _is_due(self, check_interval: bool) -> bool:
        """As TensorFlow's manager decides it."""
        if self._checkpoint_interval is None:
            return True
        step, last = private.count_of(self._step_counter), self._last_checkpoint_step
        if last is not None and (step == last or (check_interval and step < last + self._checkpoint_interval)):
            return False
        self._last_checkpoint_step = step
        return True

    def sync(self) -> None:
        """Waits until all saves are on disk."""
        self._wait_saved()

    # -- what there is ---------------------------------------------------------------------------------------
    @property
    def latest_checkpoint(self) -> Any:
        """The newest checkpoint on disk, or None.  Waits for a save that is under way; at the start, for the state that a crash left."""
        self._wait_saved()
        return self._latest_checkpoint

    @property
    def checkpoints(self) -> list[str]:
        """Those that are kept, oldest first.  Waits for a save that is under way."""
        self._wait_saved()
        return list(self._maybe_delete)

    def _wait_saved(self) -> None:
        if self._boundary is not None:
            self._controller.wait_asked()
            return
        if self._is_closed:
            return  # to look again would take the run again
        found, self._has_looked = self._controller.find_newest(), True
        if found.source == "checkpoint":
            self._list((*(path for path in found.listed if path != found.path), found.path))
        else:
            self._latest_checkpoint = None
            self._maybe_delete.clear()

    def _note_durable(self, news: Durable) -> None:
        if news.all_paths:
            self._list(news.all_paths)

    def _list(self, paths: tuple[str, ...]) -> None:
        listed = [(self._as_named(path), Path(f"{path}.index")) for path in paths]
        times = [(name, index.stat().st_mtime) for name, index in listed if index.exists()]
        self._maybe_delete = collections.OrderedDict(times)
        self._latest_checkpoint = next(reversed(self._maybe_delete), None)

    def _as_named(self, path: str) -> str:
        """A checkpoint's path as the program spells the directory."""
        return os.path.join(self._directory, os.path.basename(path))  # noqa: PTH119  a prefix is no file
