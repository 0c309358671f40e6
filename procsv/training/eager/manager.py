"""Provide CheckpointManager, the manager of checkpoints for a loop under procsv.

A program makes a manager, restores, trains, and reports the end of each step with `step`, which
takes a snapshot if one is due. `save` only captures the state; the checkpoint service writes the
files. They are the files that TensorFlow's own manager would have written, under the same names, so
a program without procsv can continue from them.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.base.run.paths import anchor
from procsv.base.run.saved_step import manifest_at
from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan, Durable
from procsv.ipc.shm.slot_index import checkpoint_prefix
from procsv.training.eager import private, replicas
from procsv.training.eager.controller import EagerController, seconds_of
from procsv.training.eager.event_files import EventFiles
from procsv.training.eager.state import EagerState
from procsv.training.runtime.context import Runtime, current
from procsv.training.runtime.last_words import may_be_within_a_step
from procsv.training.runtime.log import say_once
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions.attach import attach
from procsv.training.snapshots.boundary import Boundary

KEEP_ALL = 2**31 - 1


class CannotSave(UserError, tf.errors.FailedPreconditionError):
    """TensorFlow cannot save what the Checkpoint tracks.

    Each attempt would fail in the same way, so the exit code tells the watchdog not to restart the
    program.
    """

    def __init__(self, what: str, error: Any) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, f"{why_unsavable(what, error)}. {CURE}")
        self.exit_code = exit_codes.USAGE


def _attach_manager(directory: Any) -> tuple[Runtime, str]:
    """Attach a manager to the run; return the run, and the directory that the manager uses."""
    if not tf.executing_eagerly():
        raise UserError("procsv.CheckpointManager needs eager execution; in graph mode use procsv.Supervisor")
    if directory is not None and local_path(directory) is None:
        raise UserError(
            f"procsv.CheckpointManager needs a directory that is mounted on this machine, and {directory} is a URL: "
            "use such a directory, or tf.train.CheckpointManager"
        )
    launched = current()
    if launched is not None and not launched.connection.start.is_chief:
        directory = None  # only the chief saves; this task uses the run's directory, or the chief's (`_follow_chief`)
    runtime, used = attach(None if directory is None else os.fspath(directory), may_save=True)
    if runtime is None:
        raise UserError("name the directory of the checkpoints: procsv.CheckpointManager(checkpoint, directory)")
    return runtime, used


CURE = (
    "If this is a dataset's iterator, do not track it; after a restore, skip the batches that were already used. Or "
    "build the dataset without Python functions (tf.data.Dataset.from_generator, tf.py_function)"
)


def why_unsavable(what: str, error: Any) -> str:
    """Return a sentence that says why the part `what` of a Checkpoint cannot be saved.

    The message of TensorFlow's `error` has the reason between two names of an op. These names are
    left out.
    """
    told = error.message.rpartition("}} ")[2].partition(" [Op:")[0].strip().rstrip(".")
    return f"TensorFlow cannot save '{what}' of the tf.train.Checkpoint: {told}"


def _is_by_program(path: str) -> bool:
    """Return whether the program asked for this checkpoint, rather than procsv."""
    manifest = manifest_at(Path(path + MANIFEST_SUFFIX))
    return manifest is None or manifest.reason == "manual"


class CheckpointManager(tf.train.CheckpointManager):
    """A `tf.train.CheckpointManager` whose training survives a crash of its process.

    Between two saves, procsv keeps snapshots of the state in shared memory. After a crash the
    program runs again from its first line, and `restore_or_initialize` restores the newest state.

    Example:
        checkpoint = tf.train.Checkpoint(step=step, model=model, optimizer=optimizer)
        manager = procsv.CheckpointManager(checkpoint)
        manager.restore_or_initialize()
        while int(step) < STEPS and not manager.should_stop():
            train(next(batches))
            step.assign_add(1)
            manager.step()  # takes a snapshot in shared memory, when one is due
            if int(step) % 1000 == 0:
                manager.save()  # captures the state; the checkpoint service writes the files
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
        """Take TensorFlow's arguments, and one more.

        Args:
            directory: The directory of the checkpoints. None uses the run's logdir, under
                `procsv launch`.
            step_counter: The variable that counts steps. Without one, procsv counts the calls of
                `step`.
            snapshot_secs: Seconds between snapshots in memory. "auto": as often as possible while
                they cost at most one percent of the time. None or 0: none between two saves. By
                default, `procsv launch --snapshot-secs` decides.
        """
        runtime, used = _attach_manager(directory)
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
        self._checkpoint_name = checkpoint_name
        self._last_checkpoint_step = last_checkpoint_step  # older versions of TensorFlow do not take this argument
        self._counter = None if isinstance(step_counter, int) else step_counter
        if isinstance(step_counter, int):
            say_once("the step_counter is not a variable, so procsv counts the calls of step() instead")
        self._saving: int | None = None  # the number of the checkpoint that the program is saving
        self._boundary: Boundary | None = None
        self._is_closed = False  # after `close`, the list of checkpoints stays as it is
        self._has_looked = False  # the program has looked for a checkpoint before the training started
        self._thread = 0
        self._highest = 0  # the highest number that the program has given to one of its checkpoints
        plan = CheckpointPlan(
            save_path=anchor(self._prefix),  # absolute: the program may change its working directory
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
        self._controller.on_replaced = self._forget_steps
        replicas.watch_reads(private.saved_by(checkpoint))
        private.fill_late_variables()

    def _make_source(self) -> EagerState:
        checkpoint = private.saved_by(self.checkpoint)
        if (unsavable := private.find_unsavable(checkpoint)) is not None:
            raise CannotSave(*unsavable)
        _ = checkpoint.save_counter  # made now, so that it is in the first snapshot and restored with it
        read_step = None if self._counter is None else lambda: private.count_of(self._counter)
        source = EagerState(checkpoint, self._controller.plan, self._next_number, read_step, self._events)
        if self._counter is not None and not source.holds(self._counter):
            say_once(
                "the tf.train.Checkpoint does not track the step_counter, so a restart resets the step_counter but "
                "restores the rest: track it, as in tf.train.Checkpoint(step=step, …)"
            )
        return source

    def _restores(self, is_new: bool) -> bool | None:
        """Return whether the program itself restores its state; None if that is unknown.

        `is_new`: there was nothing to restore. Then the answer is True if the program has asked for a
        checkpoint, because it would have restored one, and None otherwise. If there was a state,
        TensorFlow's marks on the restored objects give the answer.
        """
        return (self._has_looked or None) if is_new else private.was_restored(private.saved_by(self.checkpoint))

    def _next_number(self) -> int:
        """Return the number that a checkpoint of the current state has in its name.

        During a save of the program, this is the number of the save. Between two saves, it is one
        more than the save counter, or than the highest number that the program has given to `save`,
        whichever is higher.
        """
        if self._saving is not None:
            return self._saving
        return max(private.count_of(self.checkpoint.save_counter), self._highest) + 1

    # -- the training ----------------------------------------------------------------------------------------
    def restore_or_initialize(self) -> Any:
        """Restore the newest state, from memory or disk, and start the training.

        Return the path of the restored checkpoint. A state from memory may not be on disk yet: then
        this is the path that its checkpoint gets. If there is no state yet, call `init_fn` and
        return None.

        If the training has already started, wait for the program's saves and restore the newest
        checkpoint, as TensorFlow's manager does.
        """
        if self._boundary is not None:
            self._wait_saved()
            return super().restore_or_initialize()
        origin = self._controller.restore()
        self._follow_chief()
        self._begin_steps()
        if origin.source == "fresh":
            if self._init_fn is not None:
                self._init_fn()
            return None
        if self._checkpoint_interval is not None:
            self._last_checkpoint_step = self._step_of_last_save()
        if origin.source == "checkpoint":
            return self._as_named(origin.path)
        return checkpoint_prefix(self._controller.plan, self._next_number())

    def step(self) -> None:
        """Report that a step has ended and the state is consistent. Take a snapshot if one is due.

        A call without a snapshot costs about a microsecond.
        """
        boundary = self._boundary
        if boundary is None:
            boundary = self._start()
        elif threading.get_ident() != self._thread:
            self._controller.check_thread()
        boundary.end_step()

    def should_stop(self) -> bool:
        """Return whether the run was asked to end, for example by `procsv stop` or a notice.

        The program should then leave its loop. The next `step` or `close` saves the state.
        """
        return self._controller.runtime.stops.reason is not None

    def _start(self) -> Boundary:
        self._controller.start_training()
        return self._begin_steps()

    def _begin_steps(self) -> Boundary:
        training = self._controller.training
        assert training is not None
        self._boundary, self._thread, self._is_closed = training.boundary, training.boundary.thread, False
        counter, start = private.count_of(self.checkpoint.save_counter), f"{Path(self._prefix).name}-"
        for path in training.origin.listed:
            number = Path(path).name.removeprefix(start)
            if number.isdecimal() and int(number) > max(counter, self._highest) and _is_by_program(path):
                self._highest = int(number)
        return self._boundary

    def _step_of_last_save(self) -> int:
        """Return the step of the program's last save at or before the restored state.

        The restored state may be a snapshot that was taken after the save. So the step comes from
        the manifest of the save's checkpoint. If there is no such manifest, return the step of the
        restored state. This is right if the save itself was restored, from memory.
        """
        number = max(private.count_of(self.checkpoint.save_counter), self._highest)
        manifest = manifest_at(Path(f"{self._controller.plan.save_path}-{number}{MANIFEST_SUFFIX}"))
        if manifest is not None and manifest.reason == "manual" and manifest.sequence:
            return manifest.step
        return private.count_of(self._step_counter)

    def _forget_steps(self) -> None:
        self._boundary, self._is_closed = None, True

    def close(self) -> None:
        """Save the last state, unless it is saved already, and end the training.

        The end of a `with` block and the end of the program do this, too.
        """
        self._controller.save_last_state()
        self._forget_steps()
        self._controller.leave_run()

    def __enter__(self) -> Self:
        # Another manager does not end this training; only the end of the block does.
        self._controller.on_replaced = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the manager.

        If an error may have ended the block in the middle of a step, keep the newest snapshot
        instead of the present state.
        """
        if error is not None and may_be_within_a_step(error):
            self._controller.runtime.record_failure(error)
        self.close()

    # -- saving ----------------------------------------------------------------------------------------------
    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None, *, wait: bool = False
    ) -> Any:
        """Capture the state, and return the path of the checkpoint that the service makes from it.

        The call returns once the state is captured. A worker then copies it to shared memory, and the
        service writes the files. If no slot is free, or an earlier save is still in the way, the call
        first waits. A task whose state is not saved captures nothing and does not wait for a
        checkpoint. It gets the path of the checkpoint that the chief makes at the same step.

        Return None if `checkpoint_interval` has not passed since the last save. Also return None if
        the capture failed, and log why; a call that waits for the checkpoint raises OSError instead.

        Args:
            options: As in TensorFlow. With `experimental_write_callbacks`, the call waits as with
                `wait`, and then calls them.
            wait: Return only when the checkpoint is on disk and verified.

        Raises:
            OSError: The call waited for the checkpoint, and it was not saved. The message says why.
        """
        if self._boundary is None:
            self._start()
        self._controller.check_thread()
        if not self._is_due(check_interval):
            return None
        self.checkpoint.save_counter.assign_add(1)
        number = self.checkpoint.save_counter if checkpoint_number is None else checkpoint_number
        self._saving = private.count_of(number)
        self._highest = max(self._highest, self._saving)
        try:
            self._follow_chief()
            path = f"{self._prefix}-{self._saving}"
            if not self._controller.keeps_state:
                return path  # the chief saves it at the same step
            record = self._controller.save()
        finally:
            self._saving = None
        callbacks = getattr(options, "experimental_write_callbacks", None) or []
        if wait or callbacks:
            error = self._controller.wait_saved(record)
            if error:
                raise OSError(f"{path} is not saved: {error}")
        for callback in callbacks:
            # TensorFlow's callbacks take the path or nothing.
            callback(*(path,) * len(inspect.signature(callback).parameters))
        return None if record.failure is not None else path

    def _is_due(self, check_interval: bool) -> bool:
        """Return whether a save is due, by the rules of TensorFlow's manager."""
        if self._checkpoint_interval is None:
            return True
        step, last = private.count_of(self._step_counter), self._last_checkpoint_step
        if last is not None and (step == last or (check_interval and step < last + self._checkpoint_interval)):
            return False
        self._last_checkpoint_step = step
        return True

    def sync(self) -> None:
        """Wait until all saves are on disk."""
        self._wait_saved()

    # -- the list of checkpoints -----------------------------------------------------------------------------
    @property
    def latest_checkpoint(self) -> Any:
        """The newest checkpoint on disk, or None.

        Waits for a save that is under way. Before the training starts, waits until a state that a
        crash left in memory is on disk.
        """
        self._wait_saved()
        return self._latest_checkpoint

    @property
    def checkpoints(self) -> list[str]:
        """The kept checkpoints, oldest first. Waits for a save that is under way."""
        self._wait_saved()
        return list(self._maybe_delete)

    def _wait_saved(self) -> None:
        if self._boundary is not None:
            self._controller.wait_asked()
            return
        if self._is_closed:
            return  # looking again would rejoin the run that we have left
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
        self._follow_chief()
        times = collections.OrderedDict[str, float]()
        for path in paths:
            # None if the run's logdir is a URL. To ask there for its time could hold up training.
            index = local_path(f"{path}.index")
            with contextlib.suppress(FileNotFoundError):  # the service has just deleted it
                times[self._as_named(path)] = 0.0 if index is None else index.stat().st_mtime
        self._maybe_delete = times
        self._latest_checkpoint = next(reversed(self._maybe_delete), None)

    def _follow_chief(self) -> None:
        """In a task whose state is not saved, use the directory in which the chief saves.

        This task may have made its manager before the chief's program named the directory.
        """
        controller = self._controller
        if controller.keeps_state or (used := controller.runtime.connection.learn_logdir()) == self.directory:
            return
        self._checkpoint_prefix = os.path.join(used, self._checkpoint_name)
        self._directory = used
        controller.plan = msgspec.structs.replace(controller.plan, save_path=self._prefix)

    def _as_named(self, path: str) -> str:
        """Return a checkpoint's path with the directory as the program spells it."""
        return os.path.join(self._directory, os.path.basename(path))  # noqa: PTH119  a prefix is no file
