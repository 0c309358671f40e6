"""State of callbacks, and of the random generators that a fit draws from.

Called by fit.py at a snapshot and at a restore.  Of a callback that has `get_state` and `set_state` that is asked; of any
other its plain attributes are kept.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from procsv.base.errors import UserError
from procsv.base.plain_values import is_plain, still
from procsv.training.keras import private
from procsv.training.keras.logged_files import put_back_files, read_files

# What a callback compares by: a Keras callback that has it set has turned its min_delta to suit it.
FUNCTIONS = {"less": keras.ops.less, "greater": keras.ops.greater, "np.less": np.less, "np.greater": np.greater}
FITS_OWN = {"_model", "model", "params", "_implements_train_batch_hooks"}


def read_callbacks(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Kind and state of each."""
    return [(type(callback).__qualname__, _state_of(callback)) for callback in callbacks]


def _state_of(callback: Any) -> Any:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        state = callback.get_state()
        if not is_plain(state):
            raise UserError(
                f"{type(callback).__qualname__}.get_state() gives more than numbers, text, containers and NumPy arrays: "
                "return plain values"
            )
        return still(state)
    own = {key: value for key, value in vars(callback).items() if key not in FITS_OWN}
    functions = {key: name for key, value in own.items() for name, known in FUNCTIONS.items() if value is known}
    plain = {key: still(value) for key, value in own.items() if is_plain(value)}
    return {"plain": plain, "functions": functions, "files": read_files(callback)}


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
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    vars(callback).update(state["plain"])
    vars(callback).update({key: FUNCTIONS[name] for key, name in state["functions"].items()})
    if not is_over:
        put_back_files(callback, state.get("files", {}))


def read_random() -> dict[str, Any]:
    source = private.eager_seed_source()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "eager": None if source is None else source.getstate(),
    }


def write_random(saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    source = private.eager_seed_source()
    if source is not None and saved["eager"] is not None:
        source.setstate(saved["eager"])
