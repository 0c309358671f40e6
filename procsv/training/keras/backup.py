"""Provide BackupAndRestore, a Keras callback that lets `fit` resume at the exact batch.

    model.fit(dataset, epochs=50, callbacks=[procsv.keras.BackupAndRestore("backup")])

The callback writes nothing on the training thread: snapshots go to shared memory, and the
checkpoint service turns them into checkpoints.

DropInBackup replaces Keras' own callback in a program that does not know procsv. Under `procsv
launch --drop-in`, the state of every fit goes to the run's logdir, and a fit without a
BackupAndRestore is protected, too. If procsv cannot protect a fit, it leaves Keras' callback in
place and says so once.
"""

from __future__ import annotations

import copy
import inspect
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Literal, Self

import keras
import tensorflow as tf

from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.run.paths import anchor
from procsv.training.eager.controller import seconds_of
from procsv.training.keras import hooks, private
from procsv.training.keras.epochs import Epochs
from procsv.training.keras.fit import Fit
from procsv.training.keras.progress import FitNumbers, Options, kind_of
from procsv.training.runtime.context import current
from procsv.training.runtime.log import say_once
from procsv.training.runtime.program_calls import FROM_COMMAND_LINE, SnapshotSecs
from procsv.training.sessions.attach import attach

NAME = "backup"  # the prefix of checkpoint names
WAYS = ("auto", "replay", "iterator", "none")  # the values of the argument `data`

numbers = FitNumbers()

_theirs: Any = keras.callbacks.BackupAndRestore
_SIGNATURE = inspect.signature(_theirs.__init__)


class NoDirectory(UserError, ValueError):
    """No directory was named. Also a ValueError, as Keras' callback raises."""


def strange_strategy(model: Any) -> str:
    """Return the name of a model's strategy if procsv cannot protect fits under it, else ""."""
    kind = type(model.distribute_strategy)
    known = (type(tf.distribute.get_strategy()), tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy)
    return "" if kind in known else kind.__name__


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """A `keras.callbacks.BackupAndRestore` that resumes a fit at the batch after its last snapshot.

    It restores model and optimizer, and also the metrics, the place in the data, the other
    callbacks and the random seeds.
    """

    def __init__(
        self,
        backup_dir: Any = None,
        save_freq: int | str = "auto",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        max_to_keep: int = 2,
        data: Literal["auto", "replay", "iterator", "none"] = "auto",
        callbacks: bool = True,
        snapshot_secs: SnapshotSecs = FROM_COMMAND_LINE,
    ) -> None:
        """All arguments are optional.

        Args:
            backup_dir: The directory of the checkpoints. None uses the run's logdir, under
                `procsv launch`.
            save_freq: "auto" makes a checkpoint every ten minutes, after a crash and at a stop.
                "epoch", or a number of batches, adds one at that interval (0: after every
                batch). False switches the callback off.
            double_checkpoint: Accepted as in Keras. Here a checkpoint replaces another only once
                it is verified.
            delete_checkpoint: Whether to delete the fit's checkpoints when it has ended. Under
                `procsv launch` they stay.
            max_to_keep: How many checkpoints to keep.
            data: How a resumed fit finds its place in the data. "replay" reads the earlier batches
                of the epoch again and discards them. "iterator" keeps TensorFlow's own state of the
                iterator in each snapshot. "none" begins the epoch again, as Keras does. "auto" is
                "replay".
            callbacks: Whether to keep the state of the other callbacks.
            snapshot_secs: Seconds between snapshots in memory, as in procsv.CheckpointManager.
        """
        if private.missing:
            raise UserError(
                "procsv.keras.BackupAndRestore needs Keras 3 on TensorFlow as it is tested with, and Keras "
                f"{keras.__version__} (backend {keras.backend.backend()}) lacks {', '.join(private.missing)}: use "
                "keras.callbacks.BackupAndRestore"
            )
        if not (save_freq in ("auto", "epoch") or (isinstance(save_freq, int) and save_freq >= 0)):
            raise ValueError(
                f'Invalid value for argument `save_freq`: {save_freq!r}; pass "auto", "epoch", a number of batches, '
                "or False for off"
            )
        if data not in WAYS:
            raise ValueError(f"data is {data!r}; pass one of {', '.join(map(repr, WAYS))}")
        if backup_dir is not None and local_path(backup_dir) is None:
            raise UserError(
                "procsv.keras.BackupAndRestore needs a directory that is mounted on this machine, and "
                f"{backup_dir} is a URL: use such a directory, or keras.callbacks.BackupAndRestore"
            )
        runtime, used = attach(None if backup_dir is None else os.fspath(backup_dir), may_save=True, shares_logdir=True)
        if runtime is None:
            raise NoDirectory(
                "Empty `backup_dir` argument passed: name the directory of the backups, "
                "procsv.keras.BackupAndRestore(backup_dir)"
            )
        super().__init__(anchor(used), "epoch", delete_checkpoint=delete_checkpoint)
        self.save_freq, self.double_checkpoint = save_freq, double_checkpoint
        # The directory as the program names it. A fit that is called again names the same one.
        self.named: str | None = os.path.realpath(used)
        self._runtime = runtime
        self._options = Options(
            prefix=os.path.join(anchor(used), NAME),  # absolute: the program may change its working directory
            save_freq=save_freq,
            data="replay" if data == "auto" else data,
            max_to_keep=max_to_keep,
            keeps_callbacks=callbacks,
            snapshot_s=seconds_of(snapshot_secs, runtime),
        )
        hooks.apply_hooks(BackupAndRestore)

    def __deepcopy__(self, known: dict[int, Any]) -> Self:
        """Copy the callback, as a hyperparameter search does for each of its fits.

        All copies belong to this process' run.
        """
        return copy.copy(self)

    def make_fit(self, callbacks: Any, epochs: Epochs) -> Fit | None:
        """Create the Fit for a call of `fit` that is starting; return None if this callback is off.

        hooks.py calls this.
        """
        if self.save_freq is False:
            return None
        if strategy := strange_strategy(self.model):
            raise UserError(
                f"procsv.keras.BackupAndRestore does not work under {strategy}: use keras.callbacks.BackupAndRestore "
                "there, or a loop of your own with procsv.CheckpointManager"
            )
        if self._options.data == "iterator" and isinstance(
            self.model.distribute_strategy, tf.distribute.MirroredStrategy
        ):
            raise UserError('data="iterator" does not work under MirroredStrategy: pass data="replay"')
        directory = os.path.realpath(self.backup_dir)
        kind = kind_of(self.named, self.model, epochs.shape) if self.named is not None else None
        return Fit(self._runtime, self._options, callbacks, self, epochs, numbers.begin_fit(directory, kind))

    # hooks.py does what Keras' own methods would do. These methods only keep Keras' counters up to date.
    def on_train_begin(self, logs: Any = None) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.go_to(epoch + 1, 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._last_batch_seen = batch

    def on_train_end(self, logs: Any = None) -> None: ...

    def go_to(self, epoch: int, batch: int) -> None:
        """Set Keras' counters: ended epochs, and the last batch of the current epoch."""
        self._current_epoch, self._last_batch_seen = epoch, batch

    def delete_backups(self) -> None:
        """Remove the checkpoints of an ended fit, and the directory if nothing else is in it."""
        directory = Path(self.backup_dir)
        for pattern in (f"{NAME}-*.index", f"{NAME}-*.data-*", f"{NAME}-*.manifest.json", "checkpoint"):
            for path in directory.glob(pattern):
                path.unlink(missing_ok=True)
        home = self._runtime.connection.paths.home
        if directory.is_dir() and {path.name for path in directory.iterdir()} <= {home.name}:
            shutil.rmtree(directory)


# -- the drop-in, in a program that does not know procsv ---------------------------------------------------------
def look_after_fits() -> str:
    """Protect all fits under `procsv launch`.

    Return the private names of Keras that this needs and that this Keras lacks, separated by
    commas; "" if it lacks none. A standby also calls this, before it becomes the trainer. So procsv
    looks up the run only when a fit begins.
    """
    if not private.missing:
        hooks.apply_hooks(DropInBackup)
        hooks.look_after_others(_make_fit)
        private.take_default_seeds(_find_attempt)
    return ", ".join(private.missing)


def _find_attempt() -> tuple[str, Any] | None:
    runtime = current()
    if runtime is None:
        return None
    run = runtime.connection
    return f"{run.paths.run_dir.name} {run.start.task}", runtime.first_random


class DropInBackup(BackupAndRestore):
    """procsv's BackupAndRestore, which acts like Keras' own if procsv cannot protect the fit."""

    __qualname__ = "BackupAndRestore"  # the name in saved states and messages

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take Keras' arguments, in the order of this Keras version."""
        self._arguments = _SIGNATURE.bind(self, *args, **kwargs)
        self._arguments.apply_defaults()
        told = dict(self._arguments.arguments)
        backup_dir, save_freq = told["backup_dir"], told["save_freq"]
        # Whether this callback acts as Keras' own. It does so from the start if `backup_dir` is a URL outside of a run.
        self._is_left_alone = current() is None and local_path(backup_dir or "") is None
        is_wrong = not backup_dir or (save_freq != "epoch" and not isinstance(save_freq, int))
        if self._is_left_alone or is_wrong:  # Keras itself reports what is wrong
            self._be_theirs()
            return
        directory = None if current() is not None else backup_dir
        super().__init__(directory, save_freq, delete_checkpoint=told["delete_checkpoint"])
        self.double_checkpoint = told.get("double_checkpoint", False)
        self.named = os.path.realpath(backup_dir)

    def _be_theirs(self) -> None:
        _theirs.__init__(self, *self._arguments.args[1:], **self._arguments.kwargs)  # args[0]: the original's self

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if not self._is_left_alone and (why := _why_not(model)):
            say_once(f"keras.callbacks.BackupAndRestore remains Keras' own here: {why}")
            self._is_left_alone = True
            self._be_theirs()
            super().set_model(model)

    def make_fit(self, callbacks: Any, epochs: Epochs) -> Fit | None:
        return None if self._is_left_alone else super().make_fit(callbacks, epochs)

    def on_train_begin(self, logs: Any = None) -> None:
        if self._is_left_alone:
            _theirs.on_train_begin(self, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._is_left_alone:
            _theirs.on_epoch_end(self, epoch, logs)
        else:
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_left_alone:
            _theirs.on_train_batch_end(self, batch, logs)
        else:
            super().on_train_batch_end(batch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        if self._is_left_alone:
            _theirs.on_train_end(self, logs)


def _make_fit(callbacks: Any, epochs: Epochs) -> Fit | None:
    """Create the Fit for a `fit` without a BackupAndRestore.

    Return None if procsv cannot protect it.
    """
    runtime, model = current(), callbacks.model
    if runtime is None:
        return None  # a child process of the program
    why = _why_not(model)
    if threading.current_thread() is not threading.main_thread():
        why = "it is not on the main thread"
    if why:
        say_once(f"procsv does not protect a model.fit: {why}")
        return None
    own = BackupAndRestore()
    # A program without a BackupAndRestore does not expect that a fit resumes when it is called again after an exception.
    own.named = None
    own.set_model(model)
    say_once(f"procsv protects model.fit: it takes snapshots of its state and saves them in {own.backup_dir}")
    private.call_synchronously(callbacks)
    return own.make_fit(callbacks, epochs)


def _why_not(model: Any) -> str:
    """Return why procsv cannot protect a fit of `model` that begins here, or "" if it can."""
    hooks.abandon_raised()
    if strategy := strange_strategy(model):
        return f"{strategy} is not known to procsv yet"
    runtime = current()
    if runtime is not None and not runtime.connection.start.has_local_logdir:
        return f"the run's logdir, {runtime.connection.start.logdir}, is not a local one"
    if runtime is not None and (runtime.training is not None or runtime.owner is not None):
        return "procsv supervises one training at a time in a process, and another one has not ended"
    return ""
