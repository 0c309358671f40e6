"""After a restart, the callback that set `model.stop_training` decides again. Other stop requests are not state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import procsv
from procsv.training.keras import backup, hooks
from procsv.training.keras.fit_identity import has_ended
from procsv.training.keras.progress import FitNumbers

# Keras' own way to read a variable warns with a newer NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
EPOCHS, BATCHES = 5, 4


class Interrupted(Exception):
    """A program that ends in the middle of a fit."""


class Quiet(keras.callbacks.Callback):
    """Not part of the fit's state."""

    def get_state(self) -> None: ...

    def set_state(self, state: None) -> None: ...


class Raise(Quiet):
    """Raises when `condition` holds, after all callbacks have seen the batch or epoch."""

    def __init__(self, condition: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.condition, self.epoch = condition, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.condition(self.epoch, batch):
            raise Interrupted

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.condition(epoch, BATCHES):
            raise Interrupted


class StopAtBatch(keras.callbacks.Callback):
    """Stops at one batch and at no other."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.seen, self.last = 0, last

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        self.model.stop_training |= self.seen == self.last


class StopAtEpoch(keras.callbacks.Callback):
    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= epoch == self.last


@pytest.fixture(autouse=True)
def _end_run() -> Iterator[None]:
    yield
    end_program()


def end_program() -> None:
    hooks.abandon_all()
    backup.numbers = FitNumbers()


def fit(
    directory: Path,
    *callbacks: Any,
    fails: Callable[[int, int], bool] = lambda epoch, batch: False,
    epochs: int = EPOCHS,
) -> tuple[list[float], list[bytes]]:
    """Return the losses of the History and the weights, or nothing of a failed program."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    ours = procsv.keras.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
    every = [*callbacks, Raise(fails), ours]
    try:
        history = model.fit(
            X,
            X.sum(1),
            epochs=epochs,
            batch_size=16,
            verbose=0,
            callbacks=every,
            validation_data=(X[:16], X[:16].sum(1)),
        )
    except Interrupted:
        return [], []
    finally:
        end_program()
    return history.history["loss"], [weight.tobytes() for weight in model.get_weights()]


@pytest.mark.long
def test_a_callback_that_stops_at_one_batch_only_stops_there_after_a_crash_too(tmp_path: Path) -> None:
    wanted = fit(tmp_path / "alone", StopAtBatch(6))
    assert len(wanted[0]) == 2
    assert fit(tmp_path / "run", StopAtBatch(6), fails=lambda epoch, batch: (epoch, batch) == (1, BATCHES)) == ([], [])
    assert fit(tmp_path / "run", StopAtBatch(6)) == wanted


@pytest.mark.long
def test_early_stopping_has_ended_its_fit_and_another_launch_does_not_train_on(tmp_path: Path) -> None:
    def stop() -> Any:
        return keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2, restore_best_weights=True)

    wanted = fit(tmp_path / "run", stop())
    assert len(wanted[0]) == 3
    assert fit(tmp_path / "run", stop(), fails=lambda epoch, batch: True) == wanted


@pytest.mark.long
def test_an_unexplained_stop_does_not_end_the_fit_for_another_launch(tmp_path: Path) -> None:
    wanted = fit(tmp_path / "alone")
    assert fit(tmp_path / "run", StopAtEpoch(2))[0] == wanted[0][:3]
    assert fit(tmp_path / "run", StopAtEpoch(2)) == wanted


@pytest.mark.parametrize(
    ("place", "launch_s", "wanted"),
    [
        ({"stop": "", "launch": 1.0}, 2.0, True),
        ({"stop": "decided", "launch": 1.0}, 2.0, True),
        ({"stop": "asked", "launch": 1.0}, 1.0, True),
        ({"stop": "asked", "launch": 1.0}, 2.0, False),
        ({"stop": "asked", "launch": 0.0}, 0.0, False),
        ({"stop": "run", "launch": 1.0}, 1.0, False),
    ],
)
def test_only_the_launch_that_saw_an_unexplained_stop_takes_it_for_the_end(
    place: dict[str, Any], launch_s: float, wanted: bool
) -> None:
    assert has_ended(place, launch_s) is wanted


@pytest.mark.long
def test_a_fit_with_more_epochs_starts_the_next_one_from_the_restored_state(tmp_path: Path) -> None:
    def rate() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))

    wanted = fit(tmp_path / "alone", rate())
    fit(tmp_path / "run", rate(), epochs=2)
    assert fit(tmp_path / "run", rate()) == wanted
