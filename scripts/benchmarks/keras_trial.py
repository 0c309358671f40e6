"""Measure fits in one process, the arms in turns; the last line of standard output is the result as
JSON.

    python -m scripts.benchmarks.keras_trial '{"what": "stall", …}'       the fields of Asked

Started by keras_cost.py.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import msgspec
import tensorflow as tf

import procsv
from procsv.training.keras.fit import Fit
from procsv.training.keras.state import FitState
from scripts.benchmarks.keras_model import build_model

FREQ = 12  # batches between two saves in Keras' own ways
SNAPSHOT_S = 1.0


class Asked(msgspec.Struct):
    what: str  # stall, batch, rate
    folder: str
    mb: float
    batch: int
    batches: int = 0  # of one turn
    seconds: float = 0.0  # of one turn, if its length is not set in batches
    rounds: int = 2


class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Notes the start of each batch; ends a fit when its time is over."""

    def __init__(self, batches: int, seconds: float) -> None:
        super().__init__()
        self.times: list[float] = []
        self._batches, self._seconds = batches, seconds

    def get_state(self) -> None:
        """Return nothing: this callback has no state."""

    def set_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now_s = time.perf_counter()
        self.times.append(now_s)
        if (self._batches and len(self.times) >= self._batches) or (
            self._seconds and now_s - self.times[0] >= self._seconds
        ):
            self.model.stop_training = True


class Save(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Calls tf.train.CheckpointManager.save every FREQ batches."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder, self._seen = folder, 0
        self._manager: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seen += 1
        if self._manager is None:
            checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)
            self._manager = tf.train.CheckpointManager(checkpoint, self._folder, max_to_keep=1)
        if self._seen % FREQ == 0:
            self._manager.save()


def timed(kind: Any, name: str, found: list[float], is_saving: Callable[[Any], Any]) -> Callable[[], None]:
    """Note the time of each call of a method during which `is_saving` of its object changes; return
    a function that undoes this.
    """
    before = getattr(kind, name)

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        then, begun_s = is_saving(self), time.perf_counter()
        result = before(self, *args, **kwargs)
        spent_s = time.perf_counter() - begun_s
        if is_saving(self) != then:
            found.append(spent_s)
        return result

    setattr(kind, name, noting)
    return lambda: setattr(kind, name, before)


def note_captures() -> list[float]:
    """Return a list that records when each later capture of a fit's state was made."""
    found: list[float] = []
    capture = FitState.capture

    def counted(self: Any, into: Any) -> Any:
        found.append(time.perf_counter())
        return capture(self, into)

    FitState.capture = counted  # type: ignore[method-assign]  # to measure its time
    return found


def measure_stall(asked: Asked) -> dict[str, list[float]]:
    """Return the seconds on the training thread for each save, by way."""
    model, data = build_model(asked.mb, asked.batch)
    found: dict[str, list[float]] = defaultdict(list)
    folder, captures = asked.folder, note_captures()
    ways: dict[str, tuple[Callable[[], Any], Any, str, Callable[[Any], Any]]] = {
        "procsv": (lambda: procsv.keras.BackupAndRestore(f"{folder}/ours", snapshot_secs=SNAPSHOT_S), Fit, "end_batch", lambda _: len(captures)),
        "BackupAndRestore": (lambda: keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=FREQ), keras.callbacks.BackupAndRestore, "_save_model", lambda _: object()),
        "ModelCheckpoint(.weights.h5)": (lambda: keras.callbacks.ModelCheckpoint(f"{folder}/m.weights.h5", save_freq=FREQ, save_weights_only=True), keras.callbacks.ModelCheckpoint, "_save_model", lambda _: object()),
        "ModelCheckpoint(.keras)": (lambda: keras.callbacks.ModelCheckpoint(f"{folder}/m.keras", save_freq=FREQ), keras.callbacks.ModelCheckpoint, "_save_model", lambda _: object()),
        "CheckpointManager.save": (lambda: Save(f"{folder}/manager"), tf.train.CheckpointManager, "save", lambda _: object()),
    }  # fmt: skip
    for _ in range(asked.rounds):
        for name, (make, kind, method, is_saving) in ways.items():
            undo = timed(kind, method, found[name], is_saving)
            fit(model, data, asked, make())
            undo()
    return found


def measure_batch(asked: Asked) -> dict[str, list[float]]:
    """Return seconds per batch, without procsv and with a callback of it that has nothing to do:
    the median of short turns.

    A batch takes hundreds of times the difference to measure, and sometimes much longer, which
    would dominate a mean.
    """
    model, data = build_model(asked.mb, asked.batch)
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(asked.rounds + 1):
        for name in ("bare", "procsv"):
            ours = (
                procsv.keras.BackupAndRestore(f"{asked.folder}/ours", snapshot_secs=None) if name == "procsv" else None
            )
            times = fit(model, data, asked, ours)
            if number:  # the first turn traces functions
                found[name].append(statistics.median(after - before for before, after in itertools.pairwise(times)))
    return found


def measure_rate(asked: Asked) -> dict[str, list[float]]:
    """Return batches per second, without procsv and with automatic snapshots; and `snapshots` in
    each turn of the latter.

    The arms swap places in each round, so that a machine that slows down favours neither.
    """
    model, data = build_model(asked.mb, asked.batch)
    found: dict[str, list[float]] = defaultdict(list)
    captures = note_captures()
    for _ in range(2):  # traces functions, and touches the memory
        fit(model, data, msgspec.structs.replace(asked, batches=5), None)
    for number in range(asked.rounds):
        for name in ("bare", "procsv") if number % 2 == 0 else ("procsv", "bare"):
            ours = (
                procsv.keras.BackupAndRestore(f"{asked.folder}/ours", snapshot_secs="auto")
                if name == "procsv"
                else None
            )
            captures.clear()
            times = fit(model, data, asked, ours)
            found[name].append((len(times) - 1) / (times[-1] - times[0]))
            if ours is not None:
                found["snapshots"].append(sum(times[0] < each < times[-1] for each in captures))
    return found


def fit(model: Any, data: Any, asked: Asked, callback: Any) -> list[float]:
    """Return when each batch of a fit ended."""
    clock = Clock(asked.batches, asked.seconds)
    callbacks = [clock] if callback is None else [callback, clock]
    model.fit(data, epochs=10_000, verbose=0, callbacks=callbacks)
    return clock.times


WHAT = {"stall": measure_stall, "batch": measure_batch, "rate": measure_rate}


def main(text: str) -> None:
    asked = msgspec.json.decode(text, type=Asked)
    Path(asked.folder).mkdir(parents=True, exist_ok=True)
    found = WHAT[asked.what](asked)
    sys.stderr.flush()
    print(json.dumps(found))
    sys.stdout.flush()
    os.sync()


if __name__ == "__main__":
    main(sys.argv[1])
