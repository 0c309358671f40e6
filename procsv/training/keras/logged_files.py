"""Files to which Keras' own callbacks add as a fit goes on: CSVLogger's rows, TensorBoard's events.

Used by hooks.py, fit.py and callbacks.py.  A resumed fit makes again what came after its state: so the files are cut back to what they
held then, and go on from there.  A CSVLogger empties its file when a fit begins, before anybody knows of a state: it is kept from that
until there is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from procsv.base.text import is_remote
from procsv.training.keras import private_files
from procsv.training.runtime.log import log

EVENT_FILES = "*.tfevents.*"

Sizes = dict[str, int]  # bytes by path


class LoggedFiles:
    """Those of one fit, at its beginning."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Before `on_train_begin` of the callbacks."""
        loggers = [
            one for one in callbacks if isinstance(one, keras.callbacks.CSVLogger) and not is_remote(one.filename)
        ]
        self._emptied = [one for one in loggers if not one.append]
        for logger in self._emptied:
            logger.append = True

    def opened(self) -> None:
        """After it."""
        for logger in self._emptied:
            logger.append = False

    def begin_anew(self) -> None:
        """There is no state: the files are emptied, as Keras does."""
        for logger in self._emptied:
            Path(logger.filename).write_bytes(b"")
            logger.append_header = True
        self._emptied = []

    def go_on(self) -> None:
        """There is one: what is in them is cut back by `put_back_files`."""
        self._emptied = []


def read_files(callback: Any) -> Sizes:
    """How much of its files belongs to the state of this moment."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        return _sizes([Path(callback.filename)])
    if isinstance(callback, keras.callbacks.TensorBoard):
        private_files.flush_writers(callback)
        return _sizes(
            [path for directory in private_files.event_dirs(callback) for path in Path(directory).glob(EVENT_FILES)]
        )
    return {}


def _sizes(paths: list[Path]) -> Sizes:
    found = Sizes()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found[str(path)] = path.stat().st_size
    return found


def put_back_files(callback: Any, sizes: Sizes) -> None:
    """Cuts its files back to what they held, after its plain attributes were put back."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.append_header = not sizes.get(callback.filename)
        callback.csv_file.close()
        callback.csv_file = Path(callback.filename).open("a")  # noqa: SIM115  Keras closes it
    elif isinstance(callback, keras.callbacks.TensorBoard):
        private_files.open_writers_again(
            callback
        )  # where it wrote before, if the program has another directory at each start
    else:
        return
    for path, size in sizes.items():
        try:
            if Path(path).stat().st_size < size:
                log.warning("procsv: %s has lost its end since the state was saved", path)
            else:
                os.truncate(path, size)
        except FileNotFoundError:
            log.warning("procsv: %s is gone since the state was saved", path)
