"""CheckpointManager of `--drop-in`: in the place of TensorFlow's, in a program that does not know procsv.

Only the program's own `save` is a moment at which its state is known to be whole: it costs a capture, and nothing is taken between
two of them.  How long a program needs from one save to the next is not known either, so that no hang is noticed meanwhile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.text import is_remote
from procsv.ipc.shm.heartbeat import Phase
from procsv.training.eager import manager
from procsv.training.runtime.context import current, watched
from procsv.training.runtime.program_logdir import settle_logdir
from procsv.training.snapshots.boundary import Boundary

theirs: Any = tf.train.CheckpointManager
LEGACY = "tf_keras"  # whose BackupAndRestore has a manager of its own, and deletes its directory

_said: set[str] = set()
_supervised: list[Any] = []  # the managers that are, or were, in this process


def say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(f"procsv: {text}", file=sys.stderr)


class _InPlaceOfTheirs(type):
    """Those that are left alone are instances, too: code that asks asks by this name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, theirs) if cls is CheckpointManager else type.__instancecheck__(cls, instance)


class CheckpointManager(manager.CheckpointManager, metaclass=_InPlaceOfTheirs):
    """`tf.train.CheckpointManager`, supervised; TensorFlow's own where that cannot be, which is said once."""

    def __new__(cls, checkpoint: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        is_legacy = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == LEGACY
        why = "it belongs to tf_keras" if is_legacy else _why_not(directory) if cls is CheckpointManager else ""
        if not why:
            return super().__new__(cls)
        say_once(f"the CheckpointManager of {os.fspath(directory)} is left alone: {why}")
        wait_for_saves()
        return theirs(checkpoint, directory, *args, **kwargs)

    def __init__(self, checkpoint: Any, directory: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(checkpoint, directory, *args, snapshot_secs=None, **kwargs)
        _supervised[:] = [self]
        if current() is not None:
            # What a crash left in memory is on disk from here on, as TensorFlow's own constructor finds what is on disk.
            self._controller.find_newest()

    def _begin_steps(self) -> Boundary:
        boundary = super()._begin_steps()
        self._controller.runtime.phase = Phase.IDLE
        return boundary

    def save(self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None, **more: Any) -> Any:
        if self._boundary is None:
            self._start()
            training = self._controller.training
            assert training is not None, "it has just been started"
            training.first_step = max(training.origin.step, 0)  # the steps before the first save are this start's
        self.step()  # before it: what follows the save is the next step
        path = super().save(checkpoint_number, check_interval, options, **more)
        runtime = self._controller.runtime
        runtime.phase = Phase.IDLE
        if runtime.stop_reason is not None:
            self._stop(path)
        return path

    def sync_if_begun(self) -> None:
        if self._boundary is not None:
            self.sync()

    def _stop(self, path: Any) -> NoReturn:
        """The run is to end, which the program does not ask: it ends here, with this save on disk."""
        self.close()
        print(f"procsv: saved {path}; the program goes on from there at the next start", file=sys.stderr)
        raise SystemExit(exit_codes.RESUMABLE)


def wait_for_saves() -> None:
    """Waits until what the program has saved is on disk."""
    for one in _supervised:
        one.sync_if_begun()


def after_saves(look: Callable[..., Any]) -> Callable[..., Any]:
    """`look`, a function of TensorFlow's that reads checkpoints: it finds what the program has saved before."""

    @functools.wraps(look)
    def look_later(*args: Any, **kwargs: Any) -> Any:
        wait_for_saves()
        return look(*args, **kwargs)

    return look_later


def _why_not(directory: Any) -> str:
    """Why a manager of `directory` cannot be supervised; "" if it can."""
    if not tf.executing_eagerly():
        return "it belongs to a graph"
    if is_remote(os.fspath(directory)):
        return "its directory is not a local one"
    runtime = current()
    if any(one.owner is not None or one.training is not None for one in ([runtime] if runtime else watched())):
        return "one training at a time can be supervised in a process, and there is another one"
    if runtime is not None:
        try:
            settle_logdir(runtime, os.fspath(directory))
        except UserError as error:
            if error.exit_code == exit_codes.LOGDIR_UNUSABLE:
                raise
            return str(error)
    return ""
