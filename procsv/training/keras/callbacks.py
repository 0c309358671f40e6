"""Read and restore callbacks, and the random generators that a fit draws from.

Called by fit.py at a snapshot and at a restore, and by hooks.py when a fit begins.  A callback with `get_state` and
`set_state` says itself what its state is.  Of any other, callback_state.py finds it in the attributes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from procsv.base.errors import UserError
from procsv.base.location import local_path
from procsv.base.plain_values import digest, find_unkept, still
from procsv.training.keras import private
from procsv.training.keras.callback_state import Baseline, SavedValue, find_changed_settings
from procsv.training.keras.logged_files import put_back_files, read_files
from procsv.training.runtime.log import log

_BASELINE = "_procsv_baseline"  # attribute of a callback
FITS_OWN = {"_model", "model", "params", "_implements_train_batch_hooks", _BASELINE}
# A Keras callback with a `_set_monitor_op` makes these two from its arguments, together, at its first epoch's end.
FROM_ARGUMENTS = {"monitor_op", "min_delta"}

_said = set[tuple[str, str]]()  # callbacks and attributes that were named as not kept


def mark_fresh(callbacks: Sequence[Any]) -> None:
    """Before `on_train_begin`: a callback that no fit had before is as the program has made it."""
    for one in callbacks:
        baseline = vars(one).get(_BASELINE)
        if baseline is None:
            made = FROM_ARGUMENTS if hasattr(one, "_set_monitor_op") else set[str]()
            vars(one)[_BASELINE] = Baseline(one, frozenset(FITS_OWN | made))
        else:
            baseline.start_fit(one)


def mark_begun(callbacks: Sequence[Any]) -> None:
    """After `on_train_begin`."""
    for one in callbacks:
        _baseline_of(one).note_begun(one)


def mark_again(callbacks: Sequence[Any]) -> None:
    """The fit has begun before, and an exception has ended it."""
    for one in callbacks:
        _baseline_of(one).repeat_fit()


def _baseline_of(callback: Any) -> Baseline:
    found: Baseline = vars(callback)[_BASELINE]
    return found


def read_callbacks(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Kind and state of each."""
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
    is_of_keras = _is_of_keras(callback)  # EarlyStopping has all weights of the best epoch, and only replaces them
    state, unkept = baseline.read_state(callback, shares_arrays=is_of_keras)
    if not is_of_keras:
        for name, why in unkept.items():
            _say_unkept(kind, name, why)
    return {
        "kept": {name: tuple(saved) for name, saved in state.items()},
        "settings": baseline.settings,
        "files": read_files(callback),
    }


def _is_of_keras(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] in ("keras", __name__.partition(".")[0])


def _say_unkept(kind: str, name: str, why: str) -> None:
    if (kind, name) not in _said:
        _said.add((kind, name))
        text = "procsv: %s.%s is not kept over a restart: %s.  Give %s get_state() and set_state(state) if it matters"
        log.warning(text, kind, name, why, kind)


def kinds_of(callbacks: Sequence[Any]) -> list[str]:
    return [type(callback).__qualname__ for callback in callbacks]


def check_callbacks(callbacks: Sequence[Any], saved: list[tuple[str, Any]], other_calls: list[list[str]]) -> None:
    """UserError if these are neither the callbacks that were saved nor, by their kinds, those of another call of the fit."""
    now, before = kinds_of(callbacks), [kind for kind, _ in saved]
    if now != before and now not in other_calls:
        raise UserError(
            f"the callbacks have changed since the state was saved: {', '.join(before) or 'none'} then, {', '.join(now) or 'none'} now; "
            "fit with the same ones in the same order, or begin anew in another directory"
        )


def write_callbacks(callbacks: Sequence[Any], saved: list[tuple[str, Any]], is_over: bool = False) -> None:
    """A callback that was not there, in another call of the fit, is left as it is.

    `is_over`: of a fit that had ended; a later one may have gone on in its files.
    """
    left = list(saved)
    for callback, kind in zip(callbacks, kinds_of(callbacks), strict=True):
        place = next((i for i, (saved_kind, _) in enumerate(left) if saved_kind == kind), None)
        if place is not None:
            _write_state(callback, left.pop(place)[1], is_over)


def _write_state(callback: Any, state: Any, is_over: bool) -> None:
    if _has_own_state(callback):
        callback.set_state(state)
        return
    kind, baseline = type(callback).__qualname__, _baseline_of(callback)
    if not isinstance(state, dict) or "kept" not in state:
        raise UserError(
            f"the state of {kind} was saved by {kind}.get_state(), or by an older procsv, and cannot be put back: go on with those, or "
            "begin anew in another directory"
        )
    kept = {name: SavedValue(*saved) for name, saved in state["kept"].items()}
    is_best_only = isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only
    if is_best_only and not _has_its_files(callback, state["files"]):
        kept.pop("best", None)
    left = find_changed_settings(state["settings"], baseline.settings) | baseline.write_state(callback, kept)
    if left:
        changes = ", ".join(f"{name} ({why})" for name, why in left.items())
        log.warning("procsv: %s has changed since the state was saved, and goes on as it is now: %s", kind, changes)
    if not is_over:
        put_back_files(callback, state["files"])


def _has_its_files(callback: Any, files: dict[str, Any]) -> bool:
    """Whether what a ModelCheckpoint has saved is where it saves now: the best model so far is none if it is not there."""
    path = str(callback.filepath)
    target = local_path(path)
    if target is None or files["target"] == digest(path):
        return True
    if any(target.parent.glob(re.sub(r"\{[^}]*\}", "*", target.name))):
        return True
    log.warning("procsv: ModelCheckpoint saves to %s now, where no model is yet: the next one is the best so far", path)
    return False


def read_random() -> dict[str, Any]:
    source = private.eager_seed_source()
    return {
        "python": random.getstate(),
        "keras": private.run_seeds.read_seeds(),
        "numpy": np.random.get_state(),
        "eager": None if source is None else source.getstate(),
    }


def write_random(saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    private.run_seeds.write_seeds(saved["keras"])
    np.random.set_state(saved["numpy"])
    source = private.eager_seed_source()
    if source is not None and saved["eager"] is not None:
        source.setstate(saved["eager"])
