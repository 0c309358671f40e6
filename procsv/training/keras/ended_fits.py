"""End states of the fits of a program that have ended, and what tells one fit from another.

Used by fit.py.  After a crash in a later fit the program comes to the earlier ones again: each is brought to its end from
here, unless it is another fit now.  A state is a checkpoint's files under the fit's number, linked, so that retention
leaves them alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from procsv.base.system import disk
from procsv.training.keras import private
from procsv.training.runtime.log import log

Print = dict[str, Any]
_DATA = ".data-00000-of-00001"
_NAMES = {"model": "layers", "variables": "variables", "optimizer": "optimizer", "epochs": "epochs", "data": "batches"}


def take_print(model: Any, epochs: int, shape: list[int | None]) -> Print:
    """What makes a fit the one that it is: layers and shapes, epochs, batches.  The model is built."""
    return {
        "model": private.layer_kinds(model),
        "variables": [[list(variable.shape), str(variable.dtype)] for variable in model.variables],
        "optimizer": type(model.optimizer).__qualname__,
        "epochs": epochs,
        "data": list(shape),
    }


def find_difference(before: Print, now: Print) -> str:
    """In words; "" if both are of one fit."""
    for key, name in _NAMES.items():
        if before.get(key) != now[key]:
            short = len(str(before.get(key))) < 40 and len(str(now[key])) < 40
            return f"{name}: {before.get(key)} then, {now[key]} now" if short else f"other {name}"
    return ""


class EndedFits:
    """Those of one program, in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, number: int) -> str | None:
        """The checkpoint of the end of fit `number`, all of which can be read."""
        path = str(self._directory / f"fit-{number}")
        if not Path(f"{path}.index").exists():
            return None
        try:
            reader = tf.train.load_checkpoint(path)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError, OSError) as error:
            log.warning("procsv: the state at the end of fit %d cannot be read: %s", number, error)
            return None
        return path

    def keep(self, number: int, checkpoint: str) -> None:
        """Keeps the files of `checkpoint`, which is on disk.  Killed in here: there is no index, or all is there."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for suffix in (_DATA, ".index"):
            new = self._directory / f".new{suffix}"
            new.unlink(missing_ok=True)
            try:
                os.link(checkpoint + suffix, new)
            except OSError:  # a filesystem without links
                shutil.copyfile(checkpoint + suffix, new)
                disk.fsync_path(new)
            disk.rename(new, self._directory / f"fit-{number}{suffix}")
        disk.fsync_path(self._directory)

    def forget_from(self, number: int) -> None:
        """Removes the states of fit `number` and of those after it, which are another's from now on."""
        for index in self._directory.glob("fit-*.index"):
            with contextlib.suppress(ValueError):
                if int(index.stem.removeprefix("fit-")) >= number:
                    index.unlink(missing_ok=True)
                    index.with_suffix(_DATA).unlink(missing_ok=True)
