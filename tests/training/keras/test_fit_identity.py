"""A restarted program recognizes each fit, and skips one only if it is certainly the same."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

from procsv.training.keras.callbacks import mark_begun, mark_fresh
from procsv.training.keras.fit_identity import (
    Decision,
    FitIdentity,
    Recorded,
    _digest_weights,
    decide,
    find_difference,
    identify,
)

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
SHAPE = [None, 1, 5]


def dense_model(units: int = 8, rate: float = 0.3, seed: int = 1, *, is_built: bool = True) -> Any:
    keras.utils.set_random_seed(seed)
    inputs = [keras.Input((4,))] if is_built else []
    model = keras.Sequential([*inputs, keras.layers.Dense(units), keras.layers.Dropout(rate), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def identity(
    model: Any = None, x: Any = X, y: Any = Y, epochs: int = 3, callbacks: Any = (), shape: Any = SHAPE, **call: Any
) -> FitIdentity:
    model = dense_model() if model is None else model
    return identify(model, epochs, shape, {"x": x, "y": y, "initial_epoch": 0, **call}, callbacks)


def compiled(optimizer: Any = None, loss: Any = "mse", **options: Any) -> Any:
    model = dense_model()
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **options)
    return model


def trained() -> Any:
    model = dense_model()
    model.layers[0].set_weights([weight + 1 for weight in model.layers[0].get_weights()])
    return model


def of_slices(x: Any, factor: float = 2.0) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, Y)).map(lambda a, b: (a * factor, b)).shuffle(9, seed=1).batch(8)


def of_generator(x: Any) -> Any:
    def rows() -> Any:
        yield from zip(x, Y, strict=True)

    spec = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(8)


def rows_of(x: Any) -> Any:
    for number in range(100):
        yield x[number % 4 :][:8], Y[:8]


class Data(keras.utils.PyDataset):
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.x[8 * index :][:8], Y[8 * index :][:8]


class Logger(keras.callbacks.Callback):
    """A callback as in another process, or with a changed setting."""

    def __init__(self, pid: int, log: str, every: int = 1) -> None:
        super().__init__()
        self.main_pid, self.log, self.every, self.began_s = pid, log, every, time.time()


class Focal(keras.losses.Loss):
    """Has no `get_config`, as many do."""

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.abs(y_true - y_pred) ** self.gamma


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Has no `get_config`, as in TensorFlow's tutorial."""

    def __init__(self, size: int) -> None:
        self.size = tf.cast(size, tf.float32)

    def __call__(self, step: Any) -> Any:
        return 1 / self.size


class Scaled(keras.layers.Layer):
    """Holds a function, which Keras cannot describe."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def call(self, inputs: Any) -> Any:
        return self.scale(inputs)


class Weighted(keras.Model):
    """Its attributes decide how it trains."""

    def __init__(self, beta: float, second: float = 0.1, scale: Any = None) -> None:
        super().__init__()
        keras.utils.set_random_seed(1)
        self.dense, self.scaled = keras.layers.Dense(1), Scaled(scale or (lambda value: value))
        self.beta, self.second, self.began_s = beta, keras.optimizers.SGD(second), time.time()
        self.compile(keras.optimizers.SGD(0.1), "mse")
        self.dense.build((None, 4))
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.beta * self.scaled(self.dense(inputs))


class Milestones(keras.callbacks.Callback):
    """Has a list, and takes the time when a fit begins."""

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self.steps = list(steps)

    def on_train_begin(self, logs: Any = None) -> None:
        self.began_s = time.monotonic()


def scheduled(rate: float) -> Any:
    return keras.callbacks.LearningRateScheduler(functools.partial(lambda epoch, rate: rate, rate=rate))


MIDDLE = X.copy()
MIDDLE[20] += 1  # neither the first batch nor the last

OTHER: dict[str, Callable[[], FitIdentity]] = {
    "optimizer learning_rate: 0.1": lambda: identity(compiled(keras.optimizers.SGD(0.01))),
    "optimizer: SGD then, Adam now": lambda: identity(compiled(keras.optimizers.Adam(0.1))),
    "loss 0: mse then, mae now": lambda: identity(compiled(loss="mae")),
    "loss 1.0": lambda: identity(compiled(loss_weights=[0.5])),
    r"Dropout \(layer 4\) rate: 0.3 then, 0.5 now": lambda: identity(dense_model(rate=0.5)),
    r"Dense \(layer 3\) units: 8 then, 9 now": lambda: identity(dense_model(units=9)),
    "epochs: 3 then, 4 now": lambda: identity(epochs=4),
    "initial_epoch: 0 then, 1 now": lambda: identity(initial_epoch=1),
    "batches": lambda: identity(shape=[None, 1, 6]),
    "different data": lambda: identity(x=MIDDLE),
    "different data ": lambda: identity(y=Y + 1),
    "different data  ": lambda: identity(sample_weight=np.ones(40)),
    "different validation": lambda: identity(validation_data=(X, Y)),
    r"EarlyStopping \(callback 1\) patience": lambda: identity(callbacks=[keras.callbacks.EarlyStopping(patience=2)]),
    r"LearningRateScheduler": lambda: identity(callbacks=[keras.callbacks.LearningRateScheduler(lambda e: 0.1)]),
    "different weights": lambda: identity(trained()),
    "batch_size: 8 then, 9 now": lambda: identity(batch_size=9),
    "different validation ": lambda: identity(validation_steps=2),
    "metrics 0.0.thresholds: 0.5 then, 0.7 now": lambda: identity(compiled(metrics=[keras.metrics.Precision(0.7)])),
    "loss 0.gamma: 2.0 then, 3.0 now": lambda: identity(compiled(loss=Focal(3.0))),
    "different optimizer _learning_rate": lambda: identity(compiled(keras.optimizers.SGD(Schedule(512)))),
    "different attributes": lambda: identity(Weighted(2.0)),
    "different attributes ": lambda: identity(Weighted(1.0, second=0.2)),
    "different attributes  ": lambda: identity(Weighted(1.0, scale=lambda value: value + 1)),
    "LearningRateScheduler (callback 1)": lambda: identity(callbacks=[scheduled(0.2)]),
    "Milestones": lambda: identity(callbacks=[Milestones(1, 3)]),
}
BASE: dict[str, Callable[[], FitIdentity]] = {
    "batch_size: 8 then, 9 now": lambda: identity(batch_size=8),
    "metrics 0.0.thresholds: 0.5 then, 0.7 now": lambda: identity(compiled(metrics=[keras.metrics.Precision(0.5)])),
    "loss 0.gamma: 2.0 then, 3.0 now": lambda: identity(compiled(loss=Focal(2.0))),
    "different optimizer _learning_rate": lambda: identity(compiled(keras.optimizers.SGD(Schedule(128)))),
    "different attributes": lambda: identity(Weighted(1.0)),
    "different attributes ": lambda: identity(Weighted(1.0)),
    "different attributes  ": lambda: identity(Weighted(1.0)),
    "LearningRateScheduler (callback 1)": lambda: identity(callbacks=[scheduled(0.1)]),
    "Milestones": lambda: identity(callbacks=[Milestones(1, 2)]),
    r"EarlyStopping \(callback 1\) patience": lambda: identity(callbacks=[keras.callbacks.EarlyStopping(patience=1)]),
    r"LearningRateScheduler": lambda: identity(callbacks=[keras.callbacks.LearningRateScheduler(lambda e: 0.2)]),
}


class OwnModel(keras.Model):
    """A model of the program's own class."""


def test_the_history_that_keras_puts_into_a_model_does_not_count() -> None:
    def key(epochs: int) -> str:
        model = OwnModel()
        model.compile("sgd", "mse")
        model.history = keras.callbacks.History()
        model.history.set_params({"epochs": epochs})
        return identity(model).key

    assert key(1) == key(2)


@pytest.mark.parametrize("said", OTHER)
def test_everything_that_defines_a_fit_tells_it_apart_from_another(said: str) -> None:
    before, now = BASE.get(said, identity)(), OTHER[said]()
    assert before.key == BASE.get(said, identity)().key
    assert now.key != before.key
    assert said.strip().replace("\\", "") in find_difference(before.settings, now.settings)


def test_a_program_that_was_edited_trains_its_fits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Weighted(1.0))
    assert before.is_certain
    monkeypatch.setattr(Weighted, "call", lambda self, inputs: self.dense(inputs))
    now = identity(Weighted(1.0))
    assert "different code" in find_difference(before.settings, now.settings)
    assert decide(recorded(before, is_over=True), now, 1, False)[0] is Decision.TRAIN
    assert decide(recorded(before, 2), now, 2, False)[0] is Decision.RESUME


def test_what_a_callback_sets_when_a_fit_begins_does_not_count() -> None:
    keys = set[str]()
    for _ in range(2):
        callback = Milestones(1, 2)
        mark_fresh([callback])
        callback.on_train_begin()
        mark_begun([callback])
        keys.add(identity(callbacks=[callback]).key)
    assert len(keys) == 1


def test_an_unbuilt_model_is_identified_by_its_initializers_seeds() -> None:
    first = identity(dense_model(is_built=False))
    assert first.key == identity(dense_model(is_built=False)).key
    assert first.key != identity(dense_model(is_built=False, seed=2)).key
    assert first.is_certain


def test_names_that_keras_numbers_within_a_process_do_not_count() -> None:
    first = identity()
    dense_model()
    assert identity(dense_model()).key == first.key


def test_process_specific_values_in_a_callback_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = list[str]()
    for pid, every in ((4321, 1), (4322, 1), (4322, 4322)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        keys.append(identity(callbacks=[Logger(os.getpid(), f"{tmp_path}/{pid}", every)]).key)
    assert keys[0] == keys[1]
    assert keys[1] != keys[2]  # a setting counts, whatever its number


DATA: dict[str, Callable[[Any], Any]] = {
    "arrays": lambda x: x,
    "a dict of arrays": lambda x: {"a": x},
    "tf.data": of_slices,
    "a PyDataset": Data,
    "a generator": rows_of,
    "a tf.data generator": of_generator,
}


@pytest.mark.parametrize("kind", DATA)
def test_data_that_differ_in_the_middle_are_other_data(kind: str) -> None:
    make = DATA[kind]
    first = identity(x=make(X), y=None)
    assert first.is_certain
    assert identity(x=make(X), y=None).key == first.key
    assert identity(x=make(MIDDLE), y=None).key != first.key


def test_the_operations_of_a_dataset_function_count() -> None:
    assert identity(x=of_slices(X, 2.0)).key != identity(x=of_slices(X, 3.0)).key
    data = tf.data.Dataset.range(4).enumerate()
    functions = (lambda a, b: a - b, lambda a, b: b - a, lambda a, b: tf.strings.as_string(a, width=2))
    found = [identity(x=data.map(one), y=None) for one in (*functions, functions[0])]
    assert found[0].key == found[3].key
    assert len({one.key for one in found}) == 3
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1]), 0)
    assert not identity(x=data.map(lambda a, b: table.lookup(tf.cast(a, tf.int32))), y=None).is_certain


SCALE = tf.Variable(1.0)
FILES: dict[str, Callable[[str], Any]] = {
    "text lines": lambda path: tf.data.TextLineDataset([path]),
    "records": lambda path: tf.data.Dataset.from_tensor_slices([path]).interleave(tf.data.TFRecordDataset),
    "a generator": lambda path: rows_of(np.array([path], dtype=object)),
    "names": lambda path: np.array([path], dtype=object),
}


@pytest.mark.parametrize("kind", FILES)
def test_data_from_a_file_that_has_changed_are_other_data(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    keys = list[str]()
    for text in ("1 2 3", "1 2 3", "1 2 4"):
        path.write_text(text)
        found = identity(x=FILES[kind](str(path)), y=None)
        assert found.is_certain
        keys.append(found.key)
    assert keys[0] == keys[1] != keys[2]
    assert not identity(x=FILES[kind]("gs://bucket/rows.txt"), y=None).is_certain


def test_a_variable_that_a_dataset_function_reads_counts() -> None:
    keys = set[str]()
    for scale in (1.0, 2.0):
        SCALE.assign(scale)
        keys.add(identity(x=tf.data.Dataset.range(4).map(lambda n: tf.cast(n, tf.float32) * SCALE), y=None).key)
    assert len(keys) == 2


def test_inspecting_the_data_consumes_none_of_it() -> None:
    generator = rows_of(X)
    next(generator)
    data = of_slices(X)
    identity(x=generator)
    identity(x=data)
    assert next(generator)[0].tobytes() == X[1:][:8].tobytes()
    first = [np.asarray(a).tobytes() for a, _ in data]
    assert first == [np.asarray(a).tobytes() for a, _ in of_slices(X)]  # the shuffle's first order


def test_a_schedule_that_hides_its_content_proves_nothing() -> None:
    hidden = iter([0.1, 0.2])
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: next(hidden))
    assert not identity(callbacks=[scheduler]).is_certain
    stopping = keras.callbacks.EarlyStopping("loss")
    stopping.monitor_op = keras.ops.less  # as Keras sets it
    assert identity(callbacks=[stopping]).is_certain


# -- the decision ------------------------------------------------------------------------------------------------
def recorded(mine: FitIdentity, number: int = 1, **changes: Any) -> Recorded:
    return msgspec.structs.replace(Recorded(number, False, [mine.key], mine.settings, []), **changes)


def changed(mine: FitIdentity, **settings: Any) -> FitIdentity:
    return FitIdentity.from_settings({**mine.settings, **settings})


MINE = FitIdentity.from_settings(
    {"layers": [], "optimizer": {"": "SGD"}, "epochs": 3, "data": "d", "validation": "v", "weights": "w"}
)
UNSEEN = changed(MINE, data="cannot be compared")
ROWS: list[tuple[str, Recorded | None, FitIdentity, int, bool, Decision]] = [
    ("nothing is saved", None, MINE, 1, False, Decision.TRAIN),
    ("it was interrupted", recorded(MINE), MINE, 1, False, Decision.RESUME),
    ("it was interrupted, under another number", recorded(MINE, 7), MINE, 1, False, Decision.RESUME),
    ("it had ended", recorded(MINE, is_over=True), MINE, 1, False, Decision.ENDED),
    ("it had ended, under another number", recorded(MINE, 7, is_over=True), MINE, 1, False, Decision.ENDED),
    ("it had ended, of unseen data", recorded(UNSEEN, is_over=True), UNSEEN, 1, False, Decision.TRAIN),
    ("it was interrupted, of unseen data", recorded(UNSEEN), UNSEEN, 1, False, Decision.RESUME),
    ("other weights, the first fit", recorded(MINE), changed(MINE, weights="z"), 1, False, Decision.RESUME),
    ("other weights, a later fit", recorded(MINE, 2), changed(MINE, weights="z"), 2, False, Decision.TRAIN),
    ("other weights, other numbers", recorded(MINE, 7), changed(MINE, weights="z"), 1, False, Decision.TRAIN),
    ("other weights, it had ended", recorded(MINE, is_over=True), changed(MINE, weights="z"), 1, False, Decision.TRAIN),
    ("another optimizer", recorded(MINE), changed(MINE, optimizer={"": "Adam"}), 1, False, Decision.TRAIN),
    ("more epochs", recorded(MINE), changed(MINE, epochs=5), 1, False, Decision.RESUME),
    ("more epochs, it had ended", recorded(MINE, is_over=True), changed(MINE, epochs=5), 1, False, Decision.RESUME),
    ("more epochs from the same start, elsewhere", recorded(MINE, is_over=True), changed(MINE, epochs=5), 2, False, Decision.TRAIN),
    ("fewer epochs, it had ended", recorded(MINE, is_over=True), changed(MINE, epochs=2), 1, False, Decision.TRAIN),
    ("it is called again", recorded(MINE, 2), changed(MINE, weights="z", epochs=9), 2, True, Decision.RESUME),
    ("it ended before another one", recorded(changed(MINE, epochs=9), 2, ended=[MINE.key]), MINE, 1, False, Decision.ENDED_EARLIER),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_fit_is_skipped_only_if_it_is_certainly_the_same_one(
    row: tuple[str, Recorded | None, FitIdentity, int, bool, Decision],
) -> None:
    _, before, mine, number, is_again, wanted = row
    decision, why = decide(before, mine, number, is_again)
    assert decision is wanted
    assert bool(why) == (wanted is Decision.TRAIN and before is not None)


def test_a_layer_that_another_thread_changes_while_a_fit_begins_does_no_harm() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    changes = vars(model.layers[0])

    class Odd:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            changes[f"later_{len(changes)}"] = 0
            return Odd

    changes["odd"] = Odd()
    changes["after"] = 0
    assert _digest_weights(model)
