"""Hooks in Keras' CallbackList, for fits that have a BackupAndRestore of ours; other fits pass them by.

Applied when the first one is made, before its fit begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from procsv.training.graph.patches import AttributePatch
from procsv.training.keras import position, private

_FIT = "_procsv_fit"  # attribute of a CallbackList: its Fit


_kinds: list[Any] = []  # classes of callbacks that look after fits
_applied: list[AttributePatch] = []
_running: list[Any] = []  # the Fit that is under way, if any


def apply_hooks(kind: Any) -> None:
    """Fits with a callback of class `kind`, whose `make_fit` makes a Fit of each, are looked after from here on."""
    if not _applied:
        changes = {
            "on_train_begin": _at_begin,
            "on_epoch_begin": _at_epoch,
            "on_train_batch_end": _at_batch,
            "on_train_end": _at_end,
        }
        _applied.extend(AttributePatch(private.CallbackList, name, make) for name, make in changes.items())
        _applied.extend(position.patches())
        for patch in _applied:
            patch.apply()
    if kind not in _kinds:
        _kinds.append(kind)


def _at_begin(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        original(self, logs)
        ours: list[Any] = [one for one in self.callbacks if isinstance(one, tuple(_kinds))]
        fit = ours[0].make_fit(self, position.newest) if ours else None
        private.keep_with(self, _FIT, None)
        if fit is not None:
            if _running:  # it has raised, and the program goes on
                _running.pop().abandon()
            fit.begin()
            _running.append(fit)
            private.keep_with(self, _FIT, fit)

    return on_train_begin


def _at_epoch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        original(self, epoch, logs)
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.begin_epoch(epoch)

    return on_epoch_begin


def _at_batch(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        original(self, batch, logs)
        fit = getattr(self, _FIT, None)
        if fit is not None:
            fit.end_batch(batch)

    return on_train_batch_end


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
        fit.end()
        _running.remove(fit)

    return on_train_end
