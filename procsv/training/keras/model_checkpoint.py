"""ModelCheckpoint: Keras' callback, whose files are written by the checkpoint service.

    model.fit(..., callbacks=[procsv.keras.ModelCheckpoint("best.keras", save_best_only=True), procsv.keras.BackupAndRestore()])

The first save of a program is Keras' own, from which the layout of the file is found; a later one costs a capture, and for a
`.keras` archive the model's configuration.  A file is replaced whole or not at all.
"""

from __future__ import annotations

from typing import Any

import keras

from procsv.base.location import local_path
from procsv.training.keras import hooks, private_files
from procsv.training.keras.model_file import (
    Cannot,
    Layout,
    capture,
    make_order,
    save_and_find_layout,
    save_by_keras,
)
from procsv.training.runtime.log import log

UNKNOWN = f"procsv does not know how Keras {keras.__version__} saves"


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that does not hold up the training, and whose files are always whole.

    Arguments as Keras'.  In a fit that procsv looks after `best` survives a restart.  In any other, and where a layer saves itself in
    a way of its own, Keras writes on the training thread, which is said once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._files = _ModelFiles()
        self._has_saved = False  # in this hook

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if not private_files.decides_apart:
            self._files.say(UNKNOWN, str(self.filepath))
            super()._save_model(epoch, batch, logs)
            return
        path = self._get_file_path(epoch, batch, logs)
        if not self._should_save_model(epoch, batch, logs, path):
            return
        local = local_path(path)
        if local is None or path.endswith(".h5") != self.save_weights_only:
            self._files.say("it is remote, or in Keras' older format", path)
            save = self.model.save_weights if self.save_weights_only else self.model.save
            save(path, overwrite=True)
            return
        target = local.absolute()
        if target.is_dir():
            raise OSError(f"{path} is a directory: pass ModelCheckpoint the path of a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._has_saved = True
        self._files.save(self.model, str(target), self.save_weights_only)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """As Keras': a save that is due after so many batches."""
        super().on_train_batch_end(batch, logs)
        if self._has_saved:
            self._place_files()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """As Keras'.  A callback of the program's that follows finds the file in place."""
        super().on_epoch_end(epoch, logs)
        if self._has_saved:
            self._place_files()

    def _place_files(self) -> None:
        self._has_saved = False
        fit = hooks.fit_of(self.model)
        if fit is not None:
            fit.place_files_for_others(self)


class _ModelFiles:
    """The files of one callback."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._variables: list[int] = []  # ids of the model's, when the layout was found
        self._refusal = ""  # why Keras saves this model
        self._said = set[str]()

    def say(self, why: str, path: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("procsv: %s is written by Keras on the training thread: %s", path, why)

    def save(self, model: Any, path: str, weights_only: bool) -> None:
        """Saves the model as it is now: whole on disk, or on its way there."""
        fit = hooks.fit_of(model)
        variables = [id(variable) for variable in _variables_of(model)]
        if variables != self._variables:
            self._layout, self._refusal, self._variables = None, "", variables
        if not private_files.knows_files:
            self._refusal = UNKNOWN
        if fit is None or self._refusal:
            self.say(self._refusal or "procsv does not look after this fit (BackupAndRestore does)", path)
            if fit is not None:
                fit.files.wait_placed()  # else an older one might come last
            save_by_keras(model, path, weights_only)
        elif self._layout is None:
            fit.files.wait_placed()
            try:
                self._layout = save_and_find_layout(model, path, weights_only)
            except Cannot as why:
                self._refusal = str(why)
                self.say(self._refusal, path)
        else:
            order = make_order(model, path, weights_only, self._layout)
            fit.files.submit(order, capture(self._layout))


def _variables_of(model: Any) -> list[Any]:
    found = [*model.variables, *(v for metric in model.metrics for v in metric.variables)]
    return found if model.optimizer is None else [*found, *model.optimizer.variables]
