"""The state read from one Keras callback is written into another of its kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from procsv.base.plain_values import decode, encode
from procsv.training.keras.callbacks import mark_begun, mark_fresh, read_callbacks, write_callbacks

# Keras' own way to read a variable warns with a newer NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def decide(callback: keras.callbacks.EarlyStopping, losses: list[float]) -> list[int]:
    """Return how long it has waited after each epoch."""
    waits = []
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": np.float32(loss)})
        waits.append(callback.wait)
    return waits


def begin(callback: Any) -> Any:
    mark_fresh([callback])
    callback.on_train_begin()
    mark_begun([callback])
    return callback


def put_over(first: Any, second: Any) -> None:
    """Give `second` the state of `first`, as a restart does."""
    write_callbacks([second], decode(encode({"callbacks": read_callbacks([first])}))["callbacks"])


@pytest.mark.parametrize("mode", ["min", "max", "auto"])
@pytest.mark.parametrize("min_delta", [0.5, 0.01])
def test_early_stopping_decides_after_a_restore_as_without_one(mode: str, min_delta: float) -> None:
    """Also if the program now passes another `min_delta`: that one is used."""

    def made(min_delta: float) -> Any:
        return begin(keras.callbacks.EarlyStopping("loss", mode=mode, min_delta=min_delta, patience=9))

    losses = [3.0, 2.9, 2.8, 1.0, 0.9, 1.2]
    first, second, alone = made(0.5), made(min_delta), made(min_delta)
    decide(first, losses[:2])
    put_over(first, second)
    decide(alone, [3.0])
    alone.best, alone.wait = first.best, first.wait
    assert decide(second, losses[2:]) == decide(alone, losses[2:])


MAKERS: dict[str, Callable[[Path], Any]] = {
    "checkpoint": lambda directory: keras.callbacks.ModelCheckpoint(directory / "best.keras", "loss"),
    "csv": lambda directory: keras.callbacks.CSVLogger(directory / "log.csv"),
    "board": lambda directory: keras.callbacks.TensorBoard(directory / "board"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_callback_writes_where_todays_program_says(kind: str, tmp_path: Path) -> None:
    def made(directory: Path) -> Any:
        directory.mkdir()
        callback = MAKERS[kind](directory)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        callback.set_model(model)
        return begin(callback)

    first, second = made(tmp_path / "original"), made(tmp_path / "copy")
    for callback in (first, second):
        callback.on_epoch_begin(0, {})
    first.on_epoch_end(0, {"loss": 1.0})
    paths = {name: value for name, value in vars(second).items() if "copy" in str(value)}
    assert paths
    put_over(first, second)
    assert {name: value for name, value in vars(second).items() if "original" in str(value)} == {}
    assert {name: vars(second)[name] for name in paths if name != "csv_file"}.items() <= paths.items()
    for callback in (first, second):
        callback.on_train_end()


def test_the_best_model_so_far_is_forgotten_if_todays_program_saves_where_no_model_is(tmp_path: Path) -> None:
    def best_after(file: str, removed: Path = tmp_path / "none") -> Any:
        first, second = (
            begin(keras.callbacks.ModelCheckpoint(tmp_path / name, "loss", save_best_only=True))
            for name in ("{epoch}.keras", file)
        )
        first.best, first._batches_seen_since_last_saving = 0.5, 3
        state = read_callbacks([first])
        removed.unlink(missing_ok=True)
        write_callbacks([second], state)
        assert second._batches_seen_since_last_saving == 3
        return second.best

    assert best_after("{epoch}.keras") == 0.5  # the service may still be writing it
    fresh = keras.callbacks.ModelCheckpoint("x.keras", save_best_only=True).best
    (tmp_path / "2.keras").touch()
    assert best_after("{epoch}.keras") == 0.5
    assert best_after("{epoch}.keras", tmp_path / "2.keras") == fresh  # the program removes it when it starts
    assert best_after("moved/{epoch}.keras") == fresh
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "3.keras").touch()
    assert best_after("moved/{epoch}.keras") == 0.5


def test_what_the_programs_callback_cannot_keep_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Lazy(keras.callbacks.Callback):
        function: Any = None

    callback = begin(Lazy())
    callback.function = lambda: 0
    for _ in range(3):
        read_callbacks([callback])
    named = [record.getMessage() for record in caplog.records if "Lazy.function" in record.getMessage()]
    assert len(named) == 1
    assert "class function" in named[0]


SEEN = list[int]()


class Level:
    """An object of the program's own that its data use, too."""

    def __init__(self) -> None:
        self.number = 1

    def rise(self) -> None:
        self.number += 1


def test_what_a_callback_collects_outside_of_itself_is_named(caplog: pytest.LogCaptureFixture) -> None:
    losses, best, curves, level = list[float](), {"loss": 9.0}, {"loss": list[float]()}, Level()
    callback = begin(
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: SEEN.append(epoch),
            on_test_begin=lambda logs: level.rise(),
            on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]),
            on_train_batch_end=lambda batch, logs: best.update(loss=logs["loss"]),
            on_train_batch_begin=lambda batch, logs: curves["loss"].append(1.0),
        )
    )
    read_callbacks([callback])
    assert not caplog.text
    callback.on_epoch_begin(0, {})
    callback.on_epoch_end(0, {"loss": 1.0})
    callback.on_train_batch_begin(0, {})
    callback.on_train_batch_end(0, {"loss": 1.0})
    callback.on_test_begin({})
    read_callbacks([callback])
    assert all(
        f"LambdaCallback.{name} is not kept" in caplog.text for name in ("SEEN", "losses", "best", "curves", "level")
    )


TOTAL = 0


def test_a_variable_outside_of_a_callback_that_it_sets_is_named(caplog: pytest.LogCaptureFixture) -> None:
    count = 0

    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            global TOTAL
            nonlocal count
            TOTAL, count = TOTAL + 1, count + 1

    callback = begin(Counts())
    read_callbacks([callback, begin(copy.deepcopy(callback))])
    assert not caplog.text
    callback.on_epoch_begin(0)
    read_callbacks([callback])
    assert all(f"Counts.{name} is not kept" in caplog.text for name in ("TOTAL", "count"))


def test_variables_that_the_fit_makes_are_named_and_those_of_the_model_or_of_on_train_begin_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Averages(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.watched, self.kernels = self.model.layers[0], self.model.trainable_variables
            self.averages = [keras.Variable(one) for one in self.kernels]
            self.teacher = keras.models.clone_model(self.model)
            self.members = [keras.models.clone_model(self.model)]

    callback, model = Averages(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    callback.set_model(model)
    begin(callback)
    callback.late = keras.Variable(1.0)
    callback.members.append(keras.models.clone_model(model))
    callback.mixed = [keras.Variable(1.0), object()]
    read_callbacks([callback])
    assert all(f"Averages.{name} is not kept" in caplog.text for name in ("late", "members", "mixed"))
    assert not any(f"Averages.{name} " in caplog.text for name in ("watched", "kernels", "averages", "teacher"))


class Decay:
    """A schedule that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int, rate: float) -> float:
        self.calls += 1
        return 1.0 / self.calls

    def count(self, epoch: int, logs: Any = None) -> None:
        self.calls += 1


CALLING: list[Callable[[Decay], Any]] = [
    keras.callbacks.LearningRateScheduler,
    lambda one: keras.callbacks.LambdaCallback(on_epoch_end=one.count),
]


@pytest.mark.parametrize("make", CALLING)
def test_what_an_object_counts_that_a_callback_of_keras_calls_is_kept(make: Callable[[Decay], Any]) -> None:
    first, second = Decay(), Decay()
    callbacks = [begin(make(one)) for one in (first, second)]
    first.calls = 3
    put_over(*callbacks)
    assert second.calls == 3


def test_a_callback_that_does_not_keep_its_model_is_read() -> None:
    class Plain:
        """What Keras needs of a callback, without its base class."""

        def __init__(self) -> None:
            self.counts = {"steps": 0}

    callback = Plain()
    mark_fresh([callback])
    mark_begun([callback])
    callback.counts["steps"] = 3
    ((_, state),) = read_callbacks([callback])
    assert [saved[-1] for saved in state["kept"].values()] == [{"steps": 3}]
