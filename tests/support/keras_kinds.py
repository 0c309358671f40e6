"""Fit models of many kinds: `keras_kinds.py KIND` under `procsv launch`, or `keras_kinds.py alone
KIND…` for plain Keras.

It prints `KIND DIGEST` for each, over all variables and the History. A fit's random numbers and
data depend on its kind alone. With STANDS_AT in the environment it waits at that batch, and each
later one, until the run is asked to stop.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv
from tests.support.standing import stand_at

BATCH, BATCHES, EPOCHS = 16, 20, 5
KINDS = (
    "dataset",
    "arrays",
    "repeat",
    "finite repeat",
    "unknown size",
    "schedule",
    "ema",
    "accumulated",
    "four steps a call",
    "mixed precision",
    "subclass",
    "unbuilt",
    "own step",
    "own step run eagerly",
    "pydataset",
    "generator",
    "augmented",
    "eager",
    "compiled by XLA",
    "iterator",
    "own state",
    "own variables",
    "two fits",
    "stopped early",
    "mirrored",
    "mirrored mixed precision",
    "mirrored ema",
    "one device",
    "shuffled validation",
    "another model next",
)


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(32, activation="relu")
        self.drop = keras.layers.Dropout(0.4)
        self.last = keras.layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.last(self.drop(self.first(inputs), training=training))


class OwnStep(keras.Model):
    """Has no `call`, and an optimizer that Keras does not know: only `train_step` can build its variables."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(32, activation="relu"), keras.layers.Dense(3)
        self.second = keras.optimizers.Adam(1e-2)
        self.tracker, self.seeds = keras.metrics.Mean(name="mean"), keras.random.SeedGenerator(5)
        self.classify = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape(persistent=True) as tape:
            noise = keras.random.normal(tf.shape(inputs), stddev=0.1, seed=self.seeds)
            loss = self.classify(labels, self.last(self.first(inputs + noise)))
        for optimizer, layer in ((self.optimizer, self.first), (self.second, self.last)):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> Any:
        inputs, labels = data
        self.tracker.update_state(self.classify(labels, self.last(self.first(inputs))))
        return {"loss": self.tracker.result()}


class Slow(keras.callbacks.Callback):
    """Pauses after each batch so that a snapshot can happen."""

    batches = 0  # on the class: an attribute of the object would be part of the fit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.002)
        Slow.batches += 1
        stand_at(Slow.batches)


class OwnState(keras.callbacks.Callback):
    """Hides its state from a search and returns it from `get_state`. The learning rate depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = {"seen": [object()]}

    def get_state(self) -> dict[str, int]:
        return {"seen": len(self.hidden["seen"])}

    def set_state(self, state: dict[str, int]) -> None:
        self.hidden = {"seen": [object() for _ in range(state["seen"])]}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.hidden["seen"].append(object())
        self.model.optimizer.learning_rate = 1e-2 / len(self.hidden["seen"])


class Averages(keras.callbacks.Callback):
    """Averages the weights into a second model, and counts in variables. The learning rate depends on them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.count, self.losses = tf.Variable(0.0), {"loss": keras.metrics.Mean()}
        self.teacher, self.optimizer = keras.models.clone_model(model), model.optimizer
        self.whole = [model, model.trainable_variables]
        self.average: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.average = keras.models.clone_model(self.model)
        self.average.compile("sgd", "mse")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count.assign_add(1.0)
        self.losses["loss"].update_state(logs["loss"])
        for one, other in zip(self.teacher.variables, self.model.variables, strict=True):
            if one.dtype == "float32":
                one.assign(0.9 * one + 0.1 * other)
        self.model.optimizer.learning_rate = 1e-2 / (1 + 0.1 * float(self.count) * float(self.losses["loss"].result()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for one, other in zip(self.average.weights, self.model.weights, strict=True):
            one.assign(one + (other - one) / (epoch + 1))

    @property
    def variables(self) -> list[Any]:
        return [self.count, *self.losses["loss"].variables, *self.teacher.variables, *self.average.variables]


def build(kind: str) -> Any:
    if kind == "mixed precision":
        keras.mixed_precision.set_global_policy("mixed_float16")
    layers = [
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(3, dtype="float32"),
    ]
    own: dict[str, Any] = {"subclass": Subclass, "own step": OwnStep, "own step run eagerly": OwnStep}
    model = own[kind]() if kind in own else keras.Sequential(layers)
    if kind not in (*own, "unbuilt"):
        model.build((None, 16))
    keras.mixed_precision.set_global_policy("float32")
    rate = keras.optimizers.schedules.CosineDecay(1e-2, 200) if kind == "schedule" else 1e-2
    accumulated = 3 if kind == "accumulated" else None
    model.compile(
        keras.optimizers.AdamW(rate, use_ema=kind == "ema", gradient_accumulation_steps=accumulated),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=4 if kind == "four steps a call" else 1,
        jit_compile=kind == "compiled by XLA",
        run_eagerly=kind in ("eager", "own step run eagerly"),
    )
    return model


def data_of(kind: str, x: Any, y: Any) -> tuple[Any, Any, dict[str, Any]]:
    whole = tf.data.Dataset.from_tensor_slices((x, y))

    class Sequence(keras.utils.PyDataset):
        def __len__(self) -> int:
            return BATCHES

        def __getitem__(self, index: int) -> Any:
            return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]

    def generate() -> Iterator[Any]:
        while True:
            for index in range(BATCHES):
                yield x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]

    match kind:
        case "arrays":
            return x, y, {"batch_size": BATCH}
        case "repeat":
            return whole.shuffle(200, seed=5).repeat().batch(BATCH), None, {"steps_per_epoch": 17}
        case "finite repeat":
            return whole.shuffle(200, seed=5).repeat(6).batch(BATCH), None, {"steps_per_epoch": 19}
        case "unknown size":
            return whole.filter(lambda a, b: True).shuffle(320, seed=5).batch(BATCH), None, {}
        case "pydataset":
            return Sequence(), None, {"shuffle": False}
        case "generator":
            return generate(), None, {"steps_per_epoch": BATCHES}
        case "augmented":
            noisy = whole.shuffle(320, seed=5).map(lambda a, b: (a + tf.random.normal([16], stddev=0.1), b))
            return noisy.batch(BATCH), None, {}
        case _:
            return whole.shuffle(320, seed=5).batch(BATCH).prefetch(2), None, {}


def callbacks_of(kind: str, model: Any) -> list[Any]:
    found: list[Any] = [keras.callbacks.EarlyStopping("val_loss", patience=6, restore_best_weights=True), Slow()]
    if kind == "stopped early":  # after three epochs without an improvement of that size
        found[0] = keras.callbacks.EarlyStopping("val_loss", min_delta=9.0, patience=2, restore_best_weights=True)
    if kind == "own state":
        return [*found, OwnState()]
    if kind == "own variables":
        return [*found, Averages(model)]
    if kind != "schedule":
        found += [
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.97),
        ]
    return found


def train(kind: str, protected: bool) -> str:
    """Fit a model of this kind and return the digest of its end."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(11)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH * BATCHES, 16)).astype("float32"), rng.integers(0, 3, size=BATCH * BATCHES)
    strategy = tf.distribute.get_strategy()
    if kind.startswith("mirrored"):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif kind == "one device":
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    kind = kind.removeprefix("mirrored ")
    with strategy.scope():
        model = build(kind)
    found = hashlib.sha256()
    for number in range(2 if kind in ("two fits", "another model next") else 1):
        if number and kind == "another model next":
            model = keras.Sequential([*model.layers[:-1], keras.layers.Dense(9), keras.layers.Dense(3)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
            y = np.random.permutation(y)
        inputs, labels, options = data_of(kind, x, y)
        validation: Any = (x[:64], y[:64])
        if kind == "shuffled validation":
            validation = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=9).batch(7)
        callbacks = callbacks_of(kind, model)
        if protected:
            callbacks.append(procsv.keras.BackupAndRestore(data="iterator" if kind == "iterator" else "auto"))
        history = model.fit(
            inputs,
            labels,
            epochs=EPOCHS,
            verbose=0,
            validation_data=validation,
            callbacks=callbacks,
            **({"shuffle": labels is not None} | options),
        )
        found.update(json.dumps(history.history, sort_keys=True).encode())
    second = model.second.variables if isinstance(model, OwnStep) else ()
    averages = [variable for one in callbacks if isinstance(one, Averages) for variable in one.variables]
    for variable in (*model.variables, *model.optimizer.variables, *second, *averages):
        for component in getattr(getattr(variable, "value", None), "values", (variable,)):
            found.update(np.asarray(component).tobytes())
    return found.hexdigest()[:16]


def main(arguments: list[str]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    alone = arguments[0] == "alone"
    for kind in arguments[1:] if alone else arguments:
        print(f"{kind}: {train(kind, protected=not alone)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
