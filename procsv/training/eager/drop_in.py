"""Replace tf.train.CheckpointManager under `--drop-in`, in a program that does not know procsv.

procsv knows that the program's state is whole only while the program calls `save`. So only `save`
captures it. procsv does not know how long the program takes from one save to the next, so it
detects no hang between two saves.

A program may have several managers, but procsv supervises only one. It chooses in this order:

* If the run already has a directory: the manager of this directory. If no manager has it, the first
  manager that the program asks for checkpoints, because a program may name a new directory at each
  start.
* The first manager with which the program restores.
* If the program saves before it restores: the manager that it last asked for checkpoints. If it has
  asked none, the first manager that saves.

The other managers behave as TensorFlow's own.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.outcome import NO_STEP, SaveHabit
from procsv.base.run.paths import anchor, local_home
from procsv.base.run.saved_step import saved_step
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.eager import manager, private, replicas
from procsv.training.runtime.context import current, watched
from procsv.training.runtime.log import say, say_once
from procsv.training.runtime.program_logdir import settle_logdir
from procsv.training.snapshots.boundary import Boundary

theirs: Any = tf.train.CheckpointManager
PATHS = ("save_path", "ckpt_dir_or_file")  # arguments that name what is read
LEGACY = "tf_keras"  # left alone: its BackupAndRestore has a manager of its own, and deletes the directory

_supervised: list[Any] = []  # the manager that is supervised, or was last
_last_asked: list[Any] = []  # the manager that the program last asked for checkpoints
_read_from: set[Path] = set()  # directories of the checkpoints that the program has read
_looked_at: list[None] = []  # not empty if the program has asked which checkpoints there are


class _InPlaceOfTheirs(type):
    """Makes `isinstance` accept TensorFlow's own managers, too.

    The program may have made such a manager before TensorFlow's class was replaced by ours.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, theirs) if cls is CheckpointManager else type.__instancecheck__(cls, instance)


class CheckpointManager(manager.CheckpointManager, metaclass=_InPlaceOfTheirs):
    """`tf.train.CheckpointManager`, supervised by procsv.

    If procsv cannot supervise it, it acts like TensorFlow's class and says so once.
    """

    def __new__(cls, checkpoint: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        is_legacy = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == LEGACY
        why = "it belongs to tf_keras" if is_legacy else _why_never(directory)
        if not why or cls is not CheckpointManager:
            return super().__new__(cls)
        _say_left_alone(directory, why)
        wait_for_saves()
        return theirs(checkpoint, directory, *args, **kwargs)

    def __init__(self, checkpoint: Any, directory: Any, *args: Any, **kwargs: Any) -> None:
        wait_for_saves()  # TensorFlow's constructor lists the checkpoints on disk
        asked = list(_looked_at)
        theirs.__init__(self, checkpoint, directory, *args, **kwargs)
        _looked_at[:] = asked  # TensorFlow has looked here, not the program
        self._given = (checkpoint, directory, args, kwargs)
        self._place = anchor(os.fspath(directory))  # absolute: the program may change its working directory
        self._is_supervised: bool | None = None  # None: not decided yet
        self._boundary = None
        self._has_saved = self._is_saving = False  # whether TensorFlow has made a save of this manager; is making one
        self._unsavable = None  # what TensorFlow cannot save, and its error: see `find_unsavable`
        if why := _why_never(directory):
            self._leave_alone(why)
        elif (unsavable := private.find_unsavable(checkpoint)) is not None:
            self._unsavable = unsavable
            self._leave_alone(f"{manager.why_unsavable(*unsavable)}. Its save() will fail. {manager.CURE}")
        elif (runtime := current()) is not None:
            # A hot standby sleeps in held_run until it is the trainer. Then the run's directory is known.
            with runtime.held_run():
                pass
            if local_home(os.fspath(directory)) == runtime.connection.start.checkpoint_dir:
                self._supervise_if_possible()

    # -- the choice of the manager ---------------------------------------------------------------------------
    def _supervise_if_possible(self, is_saving: bool = False) -> bool:
        """Supervise this manager, unless another one is supervised or this one cannot be.

        Return whether this manager is supervised now. While another one is, a later call may still
        succeed. If `is_saving`, a supervised manager of the same directory gives way first. That
        happens when a notebook cell runs again.
        """
        if self._is_supervised is None and is_saving:
            for before in _supervised:
                if _home(before.directory) == _home(self._place):
                    before.give_way()
        if self._is_supervised is None and not _is_taken():
            if why := _why_not(self._directory_now()):
                self._leave_alone(why)
            else:
                self._supervise()
        return bool(self._is_supervised)

    def give_way(self) -> None:
        """Let another manager of the directory take over, until this one saves again."""
        self._controller.give_way()
        self._is_supervised = None

    def _supervise(self) -> None:
        (checkpoint, _, args, kwargs), asked = self._given, list(_looked_at)
        super().__init__(checkpoint, self._directory_now(), *args, snapshot_secs=None, **kwargs)
        _looked_at[:] = asked
        self._is_supervised = True
        _supervised[:] = [self]
        if current() is not None:
            # This puts on disk what a crash left in memory, because TensorFlow's managers look only there.
            self._controller.find_newest()

    def _directory_now(self) -> Any:
        """Return the directory as the program spelled it.

        If the working directory has changed since then, return the absolute path.
        """
        given = self._given[1]
        return given if self._place in (os.fspath(given), os.path.abspath(given)) else self._place

    def _leave_alone(self, why: str) -> None:
        _say_left_alone(self._given[1], why)
        self._is_supervised = False

    def _look(self) -> bool:
        """Note that the program asks for checkpoints. Return whether this manager is supervised."""
        runtime = current()
        if not self._is_saving:
            _looked_at[:] = [None]
        if self._is_supervised is None and not self._is_saving:
            _last_asked[:] = [self]
            # The run already has a directory, and this manager gets it. Its own directory may have another name,
            # because some programs name a new directory at each start.
            if runtime is not None and _has_directory(runtime.connection.start):
                self._supervise_if_possible()
        return bool(self._is_supervised)

    def _is_chosen(self) -> bool:
        """Return whether procsv makes the save that the program asks for.

        It does if this manager is supervised, or can be from now on.

        The favourite is the manager that the program last asked for checkpoints. While it can still
        become the supervised one, TensorFlow makes the first save of any other manager.
        """
        if self._is_supervised is not None:
            return self._is_supervised
        favourite = next(iter(_last_asked), self)
        if favourite is not self and favourite._is_supervised is None and not self._has_saved:
            return False  # the favourite will probably save, too, and the program restores from the favourite
        if not self._supervise_if_possible(is_saving=True):
            self._leave_alone("one training at a time can be supervised in a process, and there is another one")
        return bool(self._is_supervised)

    # -- TensorFlow's methods --------------------------------------------------------------------------------
    @property
    def latest_checkpoint(self) -> Any:
        return super().latest_checkpoint if self._look() else self._latest_checkpoint

    @property
    def checkpoints(self) -> list[str]:
        return super().checkpoints if self._look() else list(self._maybe_delete)

    def restore_or_initialize(self) -> Any:
        if not self._look() and not self._supervise_if_possible():
            return theirs.restore_or_initialize(self)
        restored = super().restore_or_initialize()
        self._count_steps(True)
        return restored

    def _count_steps(self, restores: bool | None) -> None:
        """Set what counts as a step. Without a step counter, each save counts."""
        training = self._controller.training
        assert training is not None, "it has been started"
        training.habit = SaveHabit("step" if self._counter is not None else "save", restores)

    def save(self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None, **more: Any) -> Any:
        if not self._is_chosen():
            self._has_saved = self._is_saving = True
            try:
                return theirs.save(self, checkpoint_number, check_interval, options)
            except tf.errors.FailedPreconditionError as error:
                if self._unsavable is None:
                    raise
                raise manager.CannotSave(self._unsavable[0], error) from error
            finally:
                self._is_saving = False
        if self._boundary is None:
            self._start()
            training = self._controller.training
            assert training is not None, "it has just been started"
            # The steps before the first save belong to this attempt.
            training.first_step = max(training.origin.step, 0)
            self._count_steps(training.habit.restores)
        self.step()  # first, so that the program's work after this save belongs to the next step
        path = super().save(checkpoint_number, check_interval, options, **more)
        runtime = self._controller.runtime
        runtime.heartbeat.enter_phase(Phase.PROGRAM)
        if runtime.stops.reason is not None:
            self._stop(path)
        return path

    def _begin_steps(self) -> Boundary:
        boundary = super()._begin_steps()
        self._controller.runtime.heartbeat.enter_phase(Phase.PROGRAM)
        return boundary

    def _restores(self, is_new: bool) -> bool | None:
        if is_new:
            return bool(_looked_at) or None
        # A program that has read only another directory may have restored its whole state from there, or only a
        # pretrained part. So this is unknown.
        return _home(self._directory) in _read_from or (None if _read_from else False)

    def sync(self) -> None:
        if self._is_supervised:
            super().sync()
        else:
            theirs.sync(self)

    def sync_if_begun(self) -> None:
        if self._boundary is not None:
            self.sync()

    def _stop(self, path: Any) -> NoReturn:
        """Put the save at `path` on disk and end the program with exit code 75.

        The run is stopping, and a program that does not know procsv never calls `should_stop`.
        """
        self.close()
        say(f"saved {path}; the program resumes from there at the next start")
        raise SystemExit(exit_codes.RESUMABLE)


def wait_for_saves() -> None:
    """Wait until everything that the program has saved is on disk."""
    for one in _supervised:
        one.sync_if_begun()


def after_saves(look: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `look`, which reads checkpoints in TensorFlow, so that it finds all earlier saves."""

    @functools.wraps(look)
    def look_later(*args: Any, **kwargs: Any) -> Any:
        wait_for_saves()
        _looked_at[:] = [None]
        return look(*args, **kwargs)

    return look_later


def note_restore(read: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap `read`, TensorFlow's function that restores a checkpoint, to note what it has read.

    `at` is the position of the argument that has the checkpoint's path. It is 0 for a function, and
    1 for a method of a Checkpoint.
    """
    later = after_saves(read)

    @functools.wraps(read)
    def read_later(*args: Any, **kwargs: Any) -> Any:
        path = args[at] if len(args) > at else next((kwargs[name] for name in PATHS if name in kwargs), None)
        private.fill_late_variables()
        if isinstance(path, str | os.PathLike):
            _read_from.update((_home(path), _home(os.path.dirname(path))))  # noqa: PTH120  a prefix is no file
            wait_for_saves()
            # The checkpoint may be another training's, so this does not show that the program looks for its own.
            found = read(*args, **kwargs)
            if at:  # it is a method of a Checkpoint
                replicas.after_read(args[0], path)
            return found
        return later(*args, **kwargs)

    return read_later


def _home(directory: Any) -> Path:
    return local_home(os.fspath(directory) or ".")


def _say_left_alone(directory: Any, why: str) -> None:
    say_once(f"procsv does not protect the CheckpointManager of {os.fspath(directory)}: {why}")


def _why_never(directory: Any) -> str:
    """Return why a manager of `directory` can never be supervised, or "" if it may be."""
    if not tf.executing_eagerly():
        return "it belongs to a graph"
    if local_path(directory) is None:
        return "its directory is not a local one"
    return ""


def _has_directory(start: Start) -> bool:
    """Return whether the run already has a directory for its checkpoints, whatever its name."""
    return bool(start.root) or start.naming == "mapped" or saved_step(start.checkpoint_dir) != NO_STEP


def _is_taken() -> bool:
    """Return whether another training of this process is supervised."""
    runtime = current()
    return any(one.owner is not None or one.training is not None for one in ([runtime] if runtime else watched()))


def _why_not(directory: Any) -> str:
    """Return why a manager of `directory` cannot be supervised now, or "" if it can."""
    runtime = current()
    if runtime is not None:
        try:
            settle_logdir(runtime, os.fspath(directory))
        except UserError as error:
            if error.exit_code == exit_codes.LOGDIR_UNUSABLE:
                raise
            return str(error)
    return ""
