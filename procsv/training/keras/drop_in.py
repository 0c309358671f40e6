"""Callbacks of `--drop-in`: in the place of Keras' own, in a program that does not know procsv.

Imported when Keras is.  Under `procsv launch` the state of every fit goes to the run's logdir, and a fit without a BackupAndRestore
is looked after, too.  What procsv cannot look after is left as Keras has it, which is said once.
"""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any

import keras

from procsv.base.location import local_path
from procsv.training.keras import backup, hooks, private
from procsv.training.keras.fit import Fit
from procsv.training.keras.model_checkpoint import ModelCheckpoint as ModelCheckpoint
from procsv.training.runtime.context import current
from procsv.training.runtime.log import say_once

REPLACED = ("BackupAndRestore", "ModelCheckpoint")  # of keras.callbacks

_theirs: Any = keras.callbacks.BackupAndRestore
_SIGNATURE = inspect.signature(_theirs.__init__)


def prepare() -> str:
    """Has all fits looked after, under `procsv launch`; what this Keras lacks for that, if anything.

    A standby calls this, too, which is no trainer yet: who the process trains for is asked when a fit begins.
    """
    if not private.missing:
        hooks.apply_hooks(BackupAndRestore)
        hooks.look_after_others(_make_fit)
        private.take_default_seeds(_find_attempt)
    return ", ".join(private.missing)


def _find_attempt() -> tuple[str, Any] | None:
    runtime = current()
    if runtime is None:
        return None
    run = runtime.connection
    return f"{run.paths.run_dir.name} {run.start.task}", runtime.first_random


class BackupAndRestore(backup.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore`, by procsv; as Keras has it where that cannot be."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Arguments as Keras', whose order is another one in older versions."""
        self._arguments = _SIGNATURE.bind(self, *args, **kwargs)
        self._arguments.apply_defaults()
        told = dict(self._arguments.arguments)
        backup_dir, save_freq = told["backup_dir"], told["save_freq"]
        self._is_left_alone = current() is None and local_path(backup_dir or "") is None
        is_wrong = not backup_dir or (save_freq != "epoch" and not isinstance(save_freq, int))
        if self._is_left_alone or is_wrong:  # Keras says what is wrong
            self._be_theirs()
            return
        directory = None if current() is not None else backup_dir
        super().__init__(directory, save_freq, delete_checkpoint=told["delete_checkpoint"])
        self.double_checkpoint = told.get("double_checkpoint", False)
        self.named = os.path.realpath(backup_dir)

    def _be_theirs(self) -> None:
        _theirs.__init__(*self._arguments.args, **self._arguments.kwargs)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if not self._is_left_alone and (why := _why_not(model)):
            say_once(f"keras.callbacks.BackupAndRestore is Keras' own here: {why}")
            self._is_left_alone = True
            self._be_theirs()
            super().set_model(model)

    def make_fit(self, callbacks: Any, epochs: Any) -> Fit | None:
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


def _make_fit(callbacks: Any, epochs: Any) -> Fit | None:
    """Of a fit without a BackupAndRestore, if it can be looked after."""
    runtime, model = current(), callbacks.model
    if runtime is None:
        return None  # a child of the program
    why = _why_not(model)
    if threading.current_thread() is not threading.main_thread():
        why = "it is not on the main thread"
    if not runtime.connection.start.has_local_logdir:
        why = f"the run's logdir, {runtime.connection.start.logdir}, is not a local one"
    if why:
        say_once(f"a model.fit is not looked after: {why}")
        return None
    own = backup.BackupAndRestore()
    own.named = None  # Keras would not go on with it either
    own.set_model(model)
    say_once(f"model.fit is looked after: its state is kept, and saved in {own.backup_dir}")
    private.call_synchronously(callbacks)
    return own.make_fit(callbacks, epochs)


def _why_not(model: Any) -> str:
    """Why a fit of `model` that begins here cannot be looked after; "" if it can."""
    hooks.abandon_raised()
    if strategy := backup.strange_strategy(model):
        return f"{strategy} is not known to procsv yet"
    runtime = current()
    if runtime is not None and (runtime.training is not None or runtime.owner is not None):
        return "one training at a time can be supervised in a process, and there is another one"
    return ""
