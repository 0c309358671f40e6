"""Save and restore the callbacks of a fit, and cut back the files that Keras' own callbacks write.

hooks.py calls this when a fit begins, and progress.py at a snapshot and at a restore. A callback
with `get_state` and `set_state` defines its own state. For any other callback, callback_state.py
finds the state in the attributes, and callback_variables.py the variables in them.

A resumed fit repeats what came after its snapshot, so CSVLogger's rows and TensorBoard's events are
cut back to what the files held at the snapshot. The state has no paths: procsv looks for the files
where today's callback writes, and recognizes them by name and content. A CSVLogger empties its file
when a fit begins, before procsv knows whether there is a state. procsv therefore delays that until
it knows that there is none.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import psutil

from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.plain_values import digest, find_unkept, still
from procsv.training.keras import private
from procsv.training.keras.callback_state import (
    HASHED_BYTES,
    Baseline,
    SavedValue,
    find_changed_settings,
)
from procsv.training.keras.callback_variables import Counts, count_variables, find_variables, ids_of
from procsv.training.keras.content_digest import is_own, set_by_libraries
from procsv.training.runtime.context import current
from procsv.training.runtime.log import log
from procsv.training.summaries.marks import mark_once

BASELINE = "_procsv_baseline"  # attribute of a callback
FITS_OWN = {"_model", "model", "params", "_implements_train_batch_hooks", BASELINE}
# A Keras callback with a `_set_monitor_op` computes `monitor_op` and `min_delta` from its arguments, at the end of its
# first epoch.
FROM_ARGUMENTS = frozenset({"monitor_op", "min_delta", "_set_monitor_op"})

_said = set[tuple[str, str]]()  # callbacks and attributes that were already reported as not kept

EVENT_FILES = "*.tfevents.*"
# The name of an event file has the time of its beginning in seconds, the host, the pid, a number and a suffix.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(\d+)\.\d+\.v2")

TAIL_BYTES = 256  # the end of a CSV file, by which the file is recognized

Files = dict[str, Any]  # the files of one callback, as plain values


def watched(callbacks: Sequence[Any], model: Any) -> list[Any]:
    """Return what may have attributes that are state: the callbacks, and a model of the program's
    own class.
    """
    return [*callbacks, *([model] if is_own(model) else ())]


def mark_fresh(callbacks: Sequence[Any]) -> None:
    """Mark the callbacks before `on_train_begin`.

    A callback that no fit has marked yet is as the program made it, so it gets its Baseline here.
    """
    for one in callbacks:
        baseline = vars(one).get(BASELINE)
        if baseline is None:
            made = FROM_ARGUMENTS if hasattr(one, "_set_monitor_op") else frozenset[str]()
            if isinstance(one, keras.Model):
                large = {name for name, value in vars(one).copy().items() if getattr(value, "nbytes", 0) > HASHED_BYTES}
                made = set_by_libraries(type(one).__mro__) | large
            vars(one)[BASELINE] = Baseline(one, frozenset(FITS_OWN | made))
        else:
            baseline.start_fit(one)


def mark_begun(callbacks: Sequence[Any]) -> None:
    """Mark the callbacks after `on_train_begin`."""
    for one in callbacks:
        _baseline_of(one).note_begun(one)
        _baseline_of(one).variables = count_variables(one)


def mark_again(callbacks: Sequence[Any]) -> None:
    """Mark the callbacks of a fit that an exception ended and that now begins again."""
    for one in callbacks:
        _baseline_of(one).repeat_fit()


def is_set_at_begin(callback: Any, name: str) -> bool:
    """Return whether the callback's `on_train_begin` has set this attribute, as it will in the next
    attempt.
    """
    baseline: Baseline | None = vars(callback).get(BASELINE)
    return baseline is not None and baseline.is_set_at_begin(name)


def _baseline_of(callback: Any) -> Baseline:
    found: Baseline = vars(callback)[BASELINE]
    return found


def read_callbacks(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the kind and the state of each callback."""
    return [(type(callback).__qualname__, _state_of(callback)) for callback in callbacks]


def _has_own_state(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _state_of(callback: Any) -> Any:
    kind = type(callback).__qualname__
    if _has_own_state(callback):
        state = callback.get_state()
        if why := find_unkept(state):
            raise UserError(
                f"{kind}.get_state() returns {why}: return numbers, text, standard containers and NumPy arrays"
            )
        return still(state)
    baseline = _baseline_of(callback)
    for name in baseline.find_changed_outside():
        _say_unkept(kind, name, "it is no part of the callback", "Make it an attribute of a callback if it matters")
    # EarlyStopping holds all weights of the best epoch. It replaces them and never changes them in place.
    is_of_keras = _is_of_keras(callback)
    state, unkept = baseline.read_state(callback, shares_arrays=is_of_keras)
    if not is_of_keras:
        saved, unsaved = _find_unsaved(callback)
        for name, why in {**unkept, **unsaved}.items():
            if name not in saved:
                _say_unkept(kind, name, why, f"Give {kind} get_state() and set_state(state) if it matters")
    return {
        "kept": {name: tuple(saved) for name, saved in state.items()},
        "settings": baseline.settings,
        "files": read_files(callback),
    }


def counts_of(callback: Any) -> Counts | None:
    """Return how many variables a callback held after `on_train_begin`.

    Return None if procsv does not save them.
    """
    is_skipped = _is_of_keras(callback) or _has_own_state(callback)
    return None if is_skipped else _baseline_of(callback).variables


def _find_unsaved(callback: Any) -> tuple[set[str], dict[str, str]]:
    """Return the attributes whose variables are saved, and for the others why they are not."""
    model, counts = getattr(callback, "model", None), _baseline_of(callback).variables
    optimizer = getattr(model, "optimizer", None)
    saved, unsaved = set[str](), dict[str, str]()
    for name, (variables, is_all) in find_variables(callback).items():
        holders = (model.variables, model.metrics_variables) if model is not None else ()
        known = ids_of(one for part in (*holders, getattr(optimizer, "variables", ())) for one in part)
        is_known = ids_of(variables) <= known
        if is_all and (is_known or counts.get(name) == len(variables)):
            saved.add(name)
        elif not is_known:
            unsaved[name] = "it has variables that the fit made" if is_all else "it has variables of its own"
    return saved, unsaved


def read_model(model: Any) -> dict[str, Any]:
    """Return the attributes that the fit has changed in a model of the program's own class.

    Return {} for a model of a class of Keras.
    """
    if BASELINE not in vars(model):
        return {}
    state, unkept = _baseline_of(model).read_state(model)
    for name, why in unkept.items():
        if isinstance(vars(model).get(name), list | dict | set):  # everything else may be made of variables
            _say_unkept(type(model).__qualname__, name, why, "Keep it in a callback or a tf.Variable if it matters")
    return {name: tuple(saved) for name, saved in state.items()}


def write_model(model: Any, kept: dict[str, Any]) -> None:
    """Restore the attributes of a model of the program's own class."""
    if kept and BASELINE in vars(model):
        state = {name: SavedValue(*saved) for name, saved in kept.items()}
        _say_left(type(model).__qualname__, _baseline_of(model).write_state(model, state))


# `left`: settings and attributes that keep today's values, each with the reason.
def _say_left(kind: str, left: dict[str, str]) -> None:
    if left:
        changes = ", ".join(f"{name} ({why})" for name, why in left.items())
        log.warning("procsv: %s has changed since the state was saved; the new settings apply: %s", kind, changes)


def _is_of_keras(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] in ("keras", __name__.partition(".")[0])


def _say_unkept(kind: str, name: str, why: str, advice: str) -> None:
    if (kind, name) not in _said:
        _said.add((kind, name))
        log.warning("procsv: %s.%s is not kept across a restart: %s.  %s", kind, name, why, advice)


def kinds_of(callbacks: Sequence[Any]) -> list[str]:
    return [type(callback).__qualname__ for callback in callbacks]


def check_callbacks(callbacks: Sequence[Any], saved: list[tuple[str, Any]], other_calls: list[list[str]]) -> None:
    """Raise UserError if the classes of the callbacks are not the saved ones, in the same order.

    `other_calls` has the classes of the callbacks in other calls of this fit. They are accepted,
    too.
    """
    now, before = kinds_of(callbacks), [kind for kind, _ in saved]
    if now != before and now not in other_calls:
        raise UserError(
            f"the callbacks have changed since the state was saved: {', '.join(before) or 'none'} then, "
            f"{', '.join(now) or 'none'} now; fit with the same ones in the same order, or start from the beginning in "
            "another directory"
        )


def write_callbacks(callbacks: Sequence[Any], saved: list[tuple[str, Any]], is_over: bool = False) -> None:
    """Restore the callbacks. A callback without a saved state of its class keeps its present state.

    `is_over`: the state is the end of a fit. A later fit may have written to the callbacks' files,
    so they are left alone.
    """
    for callback, state in _pair(callbacks, saved):
        _write_state(callback, state, is_over)


def _pair(callbacks: Sequence[Any], saved: Sequence[tuple[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield each callback that has a saved state, with that state.

    Several callbacks of one class get the saved states of this class in order.
    """
    left = list(saved)
    for callback, kind in zip(callbacks, kinds_of(callbacks), strict=True):
        place = next((i for i, (saved_kind, _) in enumerate(left) if saved_kind == kind), None)
        if place is not None:
            yield callback, left.pop(place)[1]


def _write_state(callback: Any, state: Any, is_over: bool) -> None:
    if _has_own_state(callback):
        callback.set_state(state)
        return
    kind, baseline = type(callback).__qualname__, _baseline_of(callback)
    if not isinstance(state, dict) or "kept" not in state:
        raise UserError(
            f"the state of {kind} cannot be restored: {kind}.get_state() or an older procsv saved it. Continue with "
            "those, or start from the beginning in another directory"
        )
    kept = {name: SavedValue(*saved) for name, saved in state["kept"].items()}
    is_best_only = isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only
    if is_best_only and not _has_its_files(callback, state["files"]):
        kept.pop("best", None)
    _say_left(kind, find_changed_settings(state["settings"], baseline.settings) | baseline.write_state(callback, kept))
    if "best" in kept and hasattr(callback, "_set_monitor_op") and callback.monitor_op is None:
        _keep_best(callback)
    if not is_over:
        put_back_files(callback, state["files"])


def _keep_best(callback: Any) -> None:
    """Keep the restored `best` while the callback sets its `monitor_op`, at the end of its first
    epoch.

    EarlyStopping forgets its best value at that moment in Keras 3.3, where it is not yet a
    MonitorCallback.
    """

    def set_monitor_op() -> None:
        del vars(callback)["_set_monitor_op"]
        best = callback.best
        callback._set_monitor_op()
        callback.best = best

    vars(callback)["_set_monitor_op"] = set_monitor_op


def _has_its_files(callback: Any, files: Files) -> bool:
    """Return whether the files that a ModelCheckpoint has saved are where it saves now.

    If they are not, there is no best model so far. If the state was saved before the first file was
    there, the checkpoint service may still be writing this file. The answer is then True.
    """
    path = str(callback.filepath)
    if _has_model(path) or (files["target"] == digest(path) and not files.get("there")):
        return True
    log.warning("procsv: ModelCheckpoint saves to %s, which has no model now: the next one counts as the best", path)
    return False


def _has_model(path: str) -> bool:
    """Return whether there is a file where a ModelCheckpoint saves.

    For a remote path, return True.
    """
    target = local_path(path)
    return target is None or any(target.parent.glob(re.sub(r"\{[^}]*\}", "*", target.name)))


def find_lost_model(callbacks: Sequence[Any], saved: Sequence[tuple[str, Any]]) -> str:
    """Return where a ModelCheckpoint saves, if it had saved a model by the state `saved`, and there
    is none at this path now; "" if no model is lost.

    A program may empty its directory when it starts. If the fit is then not trained again, the
    program does not find the model.
    """
    for callback, state in _pair(callbacks, saved):
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and isinstance(state, dict):
            files, path = state.get("files") or {}, str(callback.filepath)
            if files.get("there") and not _has_model(path):
                return path
    return ""


# -- the files that Keras' own callbacks write ----------------------------------------------------------------
class LoggedFiles:
    """The files that the callbacks of one fit write."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Delay the emptying of files. Call this before `on_train_begin` of the callbacks."""
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
        """Give the loggers their setting back, after `on_train_begin`."""
        for logger in self._emptied:
            logger.append = False

    def begin_anew(self) -> None:
        """Empty the files, as Keras does, if there is no state. A second call does nothing."""
        for logger in self._emptied:
            Path(logger.filename).write_bytes(b"")
            logger.append_header = True
        self._emptied = []

    def keep_contents(self) -> None:
        """Leave the files to `put_back_files`, which cuts them back. Called if there is a state."""
        self._emptied = []

    def remove_repeated(self, saved: Sequence[tuple[str, Any]], lost_pids: Callable[[], set[int]]) -> None:
        """Remove the event files that were begun after the snapshot. The resumed fit writes their
        points and model again.

        Call it before `put_back_files`. `saved` holds the states to be restored. `lost_pids`
        returns the process ids of this run's trainers; files of other processes stay. This process'
        own files are removed if they hold only the model, which Keras writes before procsv knows
        where the fit resumes. They stay if the saved event files are not here, because TensorBoard
        then writes to a new directory.
        """
        told = {name for _, state in saved if isinstance(state, dict) and "kept" in state for name in state["files"]}
        found = {path: name for board in self._boards for name, path in _event_files(board).items()}
        begun = [path for path, name in found.items() if name not in told]
        is_new_place = not told.intersection(found.values())
        lost = lost_pids() if begun else set()
        for board in self._boards:
            private.flush_writers(board)
        for path in begun:
            named = EVENT_FILE.fullmatch(path.name)
            if named is None:
                continue
            begun_s, pid = map(int, named.groups())
            is_of_this = pid == os.getpid() and begun_s >= int(psutil.Process().create_time())
            if not is_new_place and private.holds_only_the_model(str(path)) if is_of_this else pid in lost:
                # A kill here leaves some of these files, and the next attempt removes them.
                path.unlink(missing_ok=True)


def read_files(callback: Any) -> Files:
    """Return which part of a callback's files belongs to the current state."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        path = local_path(callback.filename)
        return _describe(path, path.stat().st_size) if path is not None and path.exists() else {}
    if isinstance(callback, keras.callbacks.TensorBoard):
        runtime, writer = current(), private.train_writer(callback)
        if runtime is not None and writer is not None:
            mark_once(runtime, writer)
        private.flush_writers(callback)
        return _sizes(_event_files(callback))
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return {"target": digest(str(callback.filepath)), "there": _has_model(str(callback.filepath))}
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
    """Cut a callback's files back to what they held, after its attributes are restored."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        _put_back_rows(callback, files)
    elif isinstance(callback, keras.callbacks.TensorBoard):
        private.open_writers_again(callback)  # with the step that the restored attributes say
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
        log.warning("procsv: %s has lost the rows from before the restart; new rows are appended to it", path)
    logger.append_header = not size
    logger.csv_file = path.open("a")  # Keras closes it


def _put_back_events(board: Any, files: Files) -> None:
    found = _event_files(board)
    if files and not files.keys() & found.keys():
        log.warning("procsv: TensorBoard now writes to %s, which has none of the earlier events", board.log_dir)
        return
    for name, size in files.items():
        path = found.get(name)
        if path is None or path.stat().st_size < size:
            log.warning("procsv: %s in %s is missing, or shorter than when the state was saved", name, board.log_dir)
        else:
            os.truncate(path, size)


def _event_files(board: Any) -> dict[str, Path]:
    """Return the local event files of a TensorBoard callback, named by purpose and file name."""
    return {
        f"{what_for}/{path.name}": path
        for what_for, directory in private.event_dirs(board).items()
        if (there := local_path(directory)) is not None
        for path in sorted(there.glob(EVENT_FILES))
    }
