"""A fit that the same program calls again after an exception continues, as with Keras' own callback."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.training.keras import backup, hooks
from procsv.training.keras.progress import BEGUN_MAX, FitNumbers, Series

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Raised(Exception):
    """The exception that ends a fit."""


class Raise(keras.callbacks.Callback):
    """Raises after that many batches, or at the end of that many epochs."""

    def __init__(self, batches: int = 0, epochs: int = 0) -> None:
        super().__init__()
        self.batches, self.epochs = batches, epochs

    def get_state(self) -> None:
        """Return nothing: it is no part of the fit."""

    def set_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise Raised

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs -= 1
        if self.epochs == 0:
            raise Raised


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backup, "numbers", FitNumbers())
    yield
    hooks.abandon_all()


def new_model(units: int = 8) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", jit_compile=False)
    return model


def fit(model: Any, ours: Any, *others: Any, epochs: int = 3, batch_size: int = 16) -> Any:
    callbacks = [ours, keras.callbacks.EarlyStopping("loss", patience=9), *others]
    return model.fit(X, Y, epochs=epochs, batch_size=batch_size, verbose=0, callbacks=callbacks)


def digest(model: Any, history: Any) -> tuple[list[bytes], Any, Any]:
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(variable).tobytes() for variable in variables], history.history, history.epoch


def callback(directory: Path, **options: Any) -> Any:
    return procsv.keras.BackupAndRestore(directory, 1, delete_checkpoint=False, **options)


@pytest.mark.long
@pytest.mark.parametrize("raises", [{"batches": 6}, {"epochs": 2}], ids=["in an epoch", "at its end"])
def test_a_fit_called_again_after_an_exception_ends_as_an_undisturbed_one(
    raises: dict[str, int], tmp_path: Path
) -> None:
    model = new_model()
    wanted = digest(model, fit(model, callback(tmp_path / "alone")))
    model = new_model()
    with pytest.raises(Raised):
        fit(model, callback(tmp_path / "run"), Raise(**raises))
    assert digest(model, fit(model, callback(tmp_path / "run"))) == wanted


@pytest.mark.long
def test_a_fit_continues_with_the_same_callback_another_number_of_epochs_and_a_new_model(tmp_path: Path) -> None:
    model = new_model()
    wanted = digest(model, fit(model, callback(tmp_path / "alone"), epochs=4))
    ours, model = callback(tmp_path / "run"), new_model()
    for batches in (6, 3):
        with pytest.raises(Raised):
            fit(model, ours, Raise(batches), epochs=2)
    model = new_model()
    assert digest(model, fit(model, ours, epochs=4)) == wanted


@pytest.mark.long
def test_the_counters_of_keras_callback_match_keras(tmp_path: Path) -> None:
    ours, model = callback(tmp_path / "run"), new_model()
    with pytest.raises(Raised):
        fit(model, ours, Raise(6))
    assert (ours._current_epoch, ours._last_batch_seen) == (1, 1)
    fit(model, ours)
    assert (ours._current_epoch, ours._last_batch_seen) == (3, 0)
    ours = callback(tmp_path / "run")
    backup.numbers = FitNumbers()  # as in the next start
    fit(model, ours, Raise(99))
    assert (ours._current_epoch, ours._last_batch_seen) == (3, 0)


@pytest.mark.long
@pytest.mark.parametrize("change", [{"batch_size": 8}, {"units": 9}], ids=["batches", "model"])
def test_another_fit_in_the_directory_of_a_fit_that_raised_starts_over(
    change: dict[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Raised):
        fit(new_model(), callback(tmp_path / "run"), Raise(6))
    model = new_model(change.get("units", 8))
    history = fit(model, callback(tmp_path / "run"), batch_size=change.get("batch_size", 16))
    assert history.epoch == [0, 1, 2]
    assert int(np.asarray(model.optimizer.iterations)) == 3 * 64 // change.get("batch_size", 16)
    assert "exception ended" in caplog.text


@pytest.mark.long
def test_a_finished_fit_is_not_continued_by_the_next_one(tmp_path: Path) -> None:
    model = new_model()
    fit(model, callback(tmp_path / "run"))
    fit(model, callback(tmp_path / "run"))
    assert int(np.asarray(model.optimizer.iterations)) == 24


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras' own saving
@pytest.mark.parametrize("fits", [1, 2], ids=["the newest fit", "a fit before it"])
def test_a_fit_that_had_ended_is_trained_again_if_the_program_has_removed_its_model(
    fits: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "best.weights.h5"

    def start() -> str:
        backup.numbers = FitNumbers()
        saves = keras.callbacks.ModelCheckpoint(best, "loss", save_best_only=True, save_weights_only=True)
        for units, others in [(8, [saves]), (9, [])][:fits]:
            fit(new_model(units), callback(tmp_path / "run"), *others, epochs=1)
        return capfd.readouterr().err

    start()
    assert start().count("not train") == fits
    best.unlink()
    said = start()
    assert re.search(f"fit 1 .*{best.name}", said)
    assert said.count("not train") == fits - 1
    assert best.exists()


def test_a_process_with_millions_of_fits_remembers_the_newest_starts() -> None:
    series = Series()
    keys = []
    for start in ("a", "a", *map(str, range(BEGUN_MAX - 1)), "a", "new", "0"):
        series.begin_fit(None)
        keys.append(series.add_key(start))
        series.end_fit()
    assert keys[:2] == ["a", "a-2"]
    assert keys[-3:] == ["a-3", "new", "0"], "what was begun long ago begins anew"
    assert len(series._begun) == BEGUN_MAX


class Counts(keras.Model):
    """Trains by attributes that are no variables."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.steps, self.weight = keras.layers.Dense(1), 0, 0.0

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        self.steps += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2) + self.weight * tf.norm(self.dense.kernel)
        if self.steps % 3:
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Anneal(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.weight += 0.5


@pytest.mark.long
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_the_attributes_of_a_model_are_state(
    run_eagerly: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(directory: str, raises: int) -> Any:
        monkeypatch.setattr(backup, "numbers", FitNumbers())  # as in another process
        keras.utils.set_random_seed(3)
        model = Counts()
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.05), run_eagerly=run_eagerly)
        with contextlib.suppress(Raised):
            fit(model, callback(tmp_path / directory), Anneal(), Raise(raises))
        hooks.abandon_all()
        return [weight.tobytes() for weight in model.get_weights()], model.steps, model.weight

    wanted = start("alone", 0)
    for raises in (5, 3):
        start("run", raises)
    assert start("run", 0) == wanted


class Freeze(keras.callbacks.Callback):
    """Freezes the first layer in the second epoch, and has Keras make the training function again, or not."""

    def __init__(self, makes_again: bool) -> None:
        super().__init__()
        self.makes_again = makes_again

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[0].trainable = False
            if self.makes_again:
                self.model.make_train_function(force=True)


@pytest.mark.long
@pytest.mark.parametrize("makes_again", [True, False])
def test_a_layer_that_a_callback_freezes_is_as_frozen_in_a_resumed_fit(
    makes_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(directory: str, raises: int) -> Any:
        monkeypatch.setattr(backup, "numbers", FitNumbers())  # as in another process
        model = new_model()
        with contextlib.suppress(Raised):
            fit(model, callback(tmp_path / directory), Freeze(makes_again), Raise(raises), epochs=3)
        hooks.abandon_all()
        return [weight.tobytes() for weight in model.get_weights()], model.layers[0].trainable

    wanted = start("alone", 0)
    for raises in (6, 6):  # in the second epoch, and in the third
        start("run", raises)
    assert start("run", 0) == wanted


@pytest.mark.long
@pytest.mark.parametrize("epochs", [1, 2])
def test_what_a_program_freezes_after_an_ended_fit_without_compiling_is_trained_as_without_a_crash(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(directory: str, raises: int) -> Any:
        monkeypatch.setattr(backup, "numbers", FitNumbers())  # as in another process
        model = new_model()
        fit(model, callback(tmp_path / directory), epochs=epochs)
        model.layers[0].trainable = False
        with contextlib.suppress(Raised):
            fit(model, callback(tmp_path / directory), Raise(raises), epochs=2)
        hooks.abandon_all()
        return [weight.tobytes() for weight in model.get_weights()]

    wanted = start("alone", 0)
    start("run", 3)
    assert start("run", 0) == wanted


class Ending:
    """A fit that does nothing but end."""

    def __init__(self) -> None:
        self.model = object()

    def end_training(self) -> None: ...
    def end_fit(self) -> None: ...
    def abandon(self) -> None: ...


def test_a_fit_is_found_by_its_model_while_other_threads_fit_and_after_theirs_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = Ending(), Ending()
    monkeypatch.setattr(hooks, "_running", [(mine, 1), (theirs, 2)])
    assert [hooks.fit_of(one.model) for one in (mine, theirs)] == [mine, theirs]
    callbacks = SimpleNamespace(_procsv_fit=theirs)
    hooks._at_end(lambda *_: None)(callbacks)
    assert [hooks.fit_of(one.model) for one in (mine, theirs)] == [mine, None]
