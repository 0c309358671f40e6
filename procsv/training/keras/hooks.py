"""Hook Keras' CallbackList for the fits that procsv protects.

procsv protects the fits that have procsv's BackupAndRestore, and under `--drop-in` also fits
without it. For all other fits the hooks change nothing. The hooks are installed when the program
makes its first BackupAndRestore, before the fit begins. Under `--drop-in` they are installed at
once.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from procsv.training.graph.patches import AttributePatch
from procsv.training.keras import position, private
from procsv.training.keras.callbacks import LoggedFiles, mark_begun, mark_fresh, watched
from procsv.training.keras.epochs import Epochs

_FIT = "_procsv_fit"  # attribute of a CallbackList: its Fit


MakeFit = Callable[[Any, Any], Any]  # takes a CallbackList and the fit's Epochs; returns None to leave the fit alone

_kinds: list[Any] = []  # BackupAndRestore, or DropInBackup, or both
_applied: list[AttributePatch] = []
_others: list[MakeFit] = []  # one function at most: it makes the Fit of a fit without a BackupAndRestore
_running: list[tuple[Any, int]] = []  # the current Fits, each with its thread


def apply_hooks(kind: Any) -> None:
    """Protect fits that have a callback of class `kind`. Its `make_fit` makes the Fit of each."""
    if not _applied:
        changes = {
            "on_train_begin": _at_begin,
            "on_epoch_begin": _at_epoch,
            "on_train_batch_begin": _before_batch,
            "on_train_batch_end": _at_batch,
            "on_test_begin": _at_evaluation,
            "on_test_batch_end": _at_test_batch,
            "on_test_end": _at_evaluation_end,
            "on_predict_batch_end": _at_predict_batch,
            "on_train_end": _at_end,
        }
        _applied.extend(AttributePatch(private.CallbackList, name, make) for name, make in changes.items())
        _applied.extend(position.patches())
        for patch in _applied:
            patch.apply()
    if kind not in _kinds:
        _kinds.append(kind)


def look_after_others(make_fit: MakeFit) -> None:
    """Have `make_fit` make the Fit of each fit that has no BackupAndRestore of procsv."""
    _others[:] = [make_fit]


def fit_of(model: Any) -> Any:
    """Return the current Fit of `model`; None if there is none."""
    return next((fit for fit, _ in reversed(_running) if fit.model is model), None)


def abandon_raised() -> None:
    """Abandon the fits of this thread that raised an exception.

    Call this at the beginning of the next fit, or outside of any fit. All fits of this thread that
    are still in `_running` have then raised. But if the next fit begins inside another one, the
    outer one has not raised, so do nothing.
    """
    if fits_under_way() <= 1:
        for one in [one for one in _running if one[1] == threading.get_ident()]:
            _running.remove(one)
            one[0].abandon()


def abandon_all() -> None:
    """Abandon every current fit, on any thread."""
    while _running:
        _running.pop()[0].abandon()


def _at_begin(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        private.keep_with(self, _FIT, None)
        abandon_raised()
        caller = sys._getframe(1)
        epochs, fit = epochs_of(caller), None
        ours: list[Any] = [one for one in self.callbacks if isinstance(one, tuple(_kinds))]
        if not ours and _others and is_fit(caller):
            fit = _others[0](self, epochs)
        is_protected = ours or fit is not None
        state = watched(self.callbacks, self.model) if is_protected else ()
        mark_fresh(state)
        files = LoggedFiles(self.callbacks if is_protected else ())
        original(self, logs)
        files.opened()
        mark_begun(state)
        if ours:
            fit = ours[0].make_fit(self, epochs)
        if fit is None:
            files.begin_anew()
        else:
            fit.begin_fit(files, fit_arguments(caller))
            _running.append((fit, threading.get_ident()))
            private.keep_with(self, _FIT, fit)

    return on_train_begin


def _at_epoch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        original(self, epoch, logs)
        fit = getattr(self, _FIT, None)
        if fit is not None:
            if fit.put_back_end():
                original(self, epoch, logs)
            fit.begin_epoch(epoch)

    return on_epoch_begin


def _before_batch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
        original(self, batch, logs)
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.begin_step()

    return on_train_batch_begin


def _at_batch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        fit = getattr(self, _FIT, None)
        if fit is None:
            original(self, batch, logs)
            return
        fit.leave_step()
        original(self, batch, logs)
        fit.end_batch(batch, logs)

    return on_train_batch_end


def _at_evaluation(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_test_begin(self: Any, logs: Any = None) -> None:
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.begin_evaluation()
        original(self, logs)

    return on_test_begin


def _at_test_batch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_test_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        original(self, batch, logs)
        _count_batch()
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.end_test_batch()

    return on_test_batch_end


def _at_evaluation_end(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_test_end(self: Any, logs: Any = None) -> None:
        original(self, logs)
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.end_evaluation()

    return on_test_end


def _at_predict_batch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_predict_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        original(self, batch, logs)
        _count_batch()

    return on_predict_batch_end


def _count_batch() -> None:
    """Count a batch of an evaluation or a prediction, also if a callback evaluates or predicts."""
    if _running:
        _running[-1][0].count_batch()


def _at_end(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_end(self: Any, logs: Any = None) -> None:
        fit = getattr(self, _FIT, None)
        if fit is None:
            original(self, logs)
            return
        private.keep_with(self, _FIT, None)
        fit.end_training()
        original(self, logs)
        fit.end_fit()
        _running[:] = [one for one in _running if one[0] is not fit]

    return on_train_end


# -- the call of `fit` ------------------------------------------------------------------------------------------
def is_fit(frame: FrameType | None) -> bool:
    """Return whether `frame` is a call of Keras' own `fit`."""
    return (
        frame is not None
        and frame.f_code.co_name == "fit"
        and frame.f_globals.get("__name__") == private.EpochIterator.__module__
    )


FIT_ARGUMENTS = (
    "x",
    "y",
    "sample_weight",
    "class_weight",
    "shuffle",
    "initial_epoch",
    "validation_data",
    "validation_freq",
    "validation_steps",
    "validation_batch_size",
)


def fit_arguments(frame: FrameType | None) -> dict[str, Any]:
    """Return the arguments of a `fit` call in `frame` by public name; none for other calls."""
    known = frame.f_locals if frame is not None and is_fit(frame) else {}
    return {name: known[name] for name in FIT_ARGUMENTS if name in known}


def epochs_of(frame: FrameType) -> Epochs | None:
    """Return the data of a `fit` call in `frame`; None if the call has none.

    The data are read from the frame, because a thread that predicts may have made another iterator
    since.
    """
    found = frame.f_locals.get(private.EPOCHS)
    return None if found is None else Epochs(found)


def fits_under_way() -> int:
    """Return how many fits the caller is within, on its thread."""
    frame, count = sys._getframe(1) if hasattr(sys, "_getframe") else None, 0
    while frame is not None:
        count += is_fit(frame)
        frame = frame.f_back
    return count
