"""Cut back what Keras' own callbacks have written since the state was saved: CSVLogger's rows, TensorBoard's events.

Used by hooks.py, fit.py and callbacks.py.  A resumed fit repeats what came after its state, so the files are cut back to what they
held then.  The state has no paths: a callback's files are where today's callback writes, and are known by their names and contents.
A CSVLogger empties its file when a fit begins, before procsv knows of a state: that waits until there is none.
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

from procsv.base.location import local_path
from procsv.base.plain_values import digest
from procsv.training.keras import private_files
from procsv.training.runtime.context import current
from procsv.training.runtime.log import log
from procsv.training.summaries.marks import mark_once

EVENT_FILES = "*.tfevents.*"
# The name of an event file: seconds of its beginning, host, process, number and suffix.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(\d+)\.\d+\.v2")

TAIL_BYTES = 256  # of a CSV file, by which it is known

Files = dict[str, Any]  # of one callback, as plain values


class LoggedFiles:
    """Those of one fit, at its beginning."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Before `on_train_begin` of the callbacks."""
        loggers = [
            one
            for one in callbacks
            if isinstance(one, keras.callbacks.CSVLogger) and local_path(one.filename) is not None
        ]
        self._emptied = [one for one in loggers if not one.append]
        self._boards = [
            one for one in callbacks if isinstance(one, keras.callbacks.TensorBoard) and not hasattr(one, "get_state")
        ]
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

    def keep_contents(self) -> None:
        """There is one: what is in them is cut back by `put_back_files`."""
        self._emptied = []

    def remove_repeated(self, saved: Sequence[tuple[str, Any]], lost_pids: Callable[[], set[int]]) -> None:
        """Removes the event files that were begun after the state was taken, whose points and model the resumed fit writes again.

        Before `put_back_files`.  `saved`: the states to be put back.  `lost_pids`: the trainers of this run, whose files they are.
        Of this process it is those that hold no more than the model, which Keras writes before it is known where the fit goes on.
        """
        told = {name for _, state in saved if isinstance(state, dict) and "kept" in state for name in state["files"]}
        found = {path: name for board in self._boards for name, path in _event_files(board).items()}
        begun = [path for path, name in found.items() if name not in told]
        is_new_place = not told.intersection(found.values())
        lost = lost_pids() if begun else set()
        for board in self._boards:
            private_files.flush_writers(board)
        for path in begun:
            named = EVENT_FILE.fullmatch(path.name)
            if named is None:
                continue
            begun_s, pid = map(int, named.groups())
            is_of_this = pid == os.getpid() and begun_s >= int(psutil.Process().create_time())
            if not is_new_place and private_files.holds_only_the_model(str(path)) if is_of_this else pid in lost:
                # Killed here: the next start finds those that are left.
                path.unlink(missing_ok=True)


def read_files(callback: Any) -> Files:
    """What of its files belongs to the state of this moment."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        path = local_path(callback.filename)
        return _describe(path, path.stat().st_size) if path is not None and path.exists() else {}
    if isinstance(callback, keras.callbacks.TensorBoard):
        runtime, writer = current(), private_files.train_writer(callback)
        if runtime is not None and writer is not None:
            mark_once(runtime, writer)
        private_files.flush_writers(callback)
        return _sizes(_event_files(callback))
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return {"target": digest(str(callback.filepath))}
    return {}


def _describe(path: Path, size: int) -> Files:
    with path.open("rb") as file:
        file.seek(max(0, size - TAIL_BYTES))
        return {"size": size, "tail": file.read(min(size, TAIL_BYTES))}


def _sizes(files: dict[str, Path]) -> dict[str, int]:
    found = dict[str, int]()
    for name, path in files.items():
        with contextlib.suppress(FileNotFoundError):
            found[name] = path.stat().st_size
    return found


def put_back_files(callback: Any, files: Files) -> None:
    """Cuts its files back to what they held, after its attributes were put back."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        _put_back_rows(callback, files)
    elif isinstance(callback, keras.callbacks.TensorBoard):
        private_files.open_writers_again(callback)  # with the step that its attributes say now
        _put_back_events(callback, files)


def _put_back_rows(logger: Any, files: Files) -> None:
    path = local_path(logger.filename)
    if path is None:
        return
    logger.csv_file.close()
    size = path.stat().st_size if path.exists() else 0
    if files and size >= files["size"] and _describe(path, files["size"]) == files:
        os.truncate(path, files["size"])
        size = files["size"]
    elif files.get("size"):
        log.warning("procsv: %s does not have the rows from before the restart: the next ones are added to it", path)
    logger.append_header = not size
    logger.csv_file = path.open("a")  # Keras closes it


def _put_back_events(board: Any, files: Files) -> None:
    found = _event_files(board)
    if files and not files.keys() & found.keys():
        log.warning("procsv: TensorBoard writes to %s now, where none of the earlier events are", board.log_dir)
        return
    for name, size in files.items():
        path = found.get(name)
        if path is None or path.stat().st_size < size:
            log.warning("procsv: %s in %s is gone, or has lost its end, since the state was saved", name, board.log_dir)
        else:
            os.truncate(path, size)


def _event_files(board: Any) -> dict[str, Path]:
    """The event files of a TensorBoard callback on this machine, by what for and name."""
    return {
        f"{what_for}/{path.name}": path
        for what_for, directory in private_files.event_dirs(board).items()
        if (there := local_path(directory)) is not None
        for path in sorted(there.glob(EVENT_FILES))
    }
