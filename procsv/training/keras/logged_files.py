"""Files to which Keras' own callbacks add as a fit goes on: CSVLogger's rows, TensorBoard's events.

Used by hooks.py, fit.py and callbacks.py.  A resumed fit makes again what came after its state: so the files are cut back to what they
held then, and go on from there.  A CSVLogger empties its file when a fit begins, before anybody knows of a state: it is kept from that
until there is none.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import psutil

from procsv.base.text import is_remote
from procsv.training.keras import private_files
from procsv.training.runtime.log import log

EVENT_FILES = "*.tfevents.*"
# The name of an event file: seconds of its beginning, host, process, number and suffix.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(\d+)\.\d+\.v2")

Sizes = dict[str, int]  # bytes by path


class LoggedFiles:
    """Those of one fit, at its beginning."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Before `on_train_begin` of the callbacks."""
        loggers = [
            one for one in callbacks if isinstance(one, keras.callbacks.CSVLogger) and not is_remote(one.filename)
        ]
        self._emptied = [one for one in loggers if not one.append]
        self._boards = [one for one in callbacks if isinstance(one, keras.callbacks.TensorBoard)]
        self._directories = _directories(self._boards)  # in which Keras has begun files
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

    def remove_repeated(self, saved: Sequence[tuple[str, Any]], lost_pids: Callable[[], set[int]]) -> None:
        """Removes the event files that were begun after the state was taken, whose points and model the resumed fit writes again.

        Before `put_back_files`.  `saved`: the states to be put back.  `lost_pids`: the trainers of this run, whose files they are.
        Of this process it is those that hold no more than the model, which Keras writes before it is known where the fit goes on.
        """
        states = [state for kind, state in saved if kind == keras.callbacks.TensorBoard.__name__ and "files" in state]
        told = {path for state in states for path in state["files"]}
        directories = self._directories.union(
            *(_local(private_files.saved_event_dirs(state["plain"])) for state in states)
        )
        begun = [path for path in _event_files(directories) if str(path) not in told]
        lost = lost_pids() if begun else set()
        for board in self._boards:
            private_files.flush_writers(board)
        for path in begun:
            named = EVENT_FILE.fullmatch(path.name)
            if named is None:
                continue
            begun_s, pid = map(int, named.groups())
            is_of_this = pid == os.getpid() and begun_s >= int(psutil.Process().create_time())
            if private_files.holds_only_the_model(str(path)) if is_of_this else pid in lost:
                # Killed here: the next start finds those that are left.
                path.unlink(missing_ok=True)


def read_files(callback: Any) -> Sizes:
    """How much of its files belongs to the state of this moment."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        return _sizes([Path(callback.filename)])
    if isinstance(callback, keras.callbacks.TensorBoard):
        private_files.flush_writers(callback)
        return _sizes(_event_files(_directories([callback])))
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


def _directories(boards: Sequence[Any]) -> set[str]:
    """Where TensorBoard callbacks write, on this machine."""
    return {one for board in boards for one in _local(private_files.event_dirs(board))}


def _local(directories: Sequence[str]) -> list[str]:
    return [one for one in directories if not is_remote(one)]


def _event_files(directories: set[str]) -> list[Path]:
    return [path for directory in sorted(directories) for path in Path(directory).glob(EVENT_FILES)]
