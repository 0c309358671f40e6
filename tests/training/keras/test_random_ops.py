"""Random ops with a count that no snapshot holds are found in a training function and named once."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import procsv
from procsv.training.keras.state import find_counting_ops

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Noisy(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs), seed=3)


class Branching(keras.Model):
    """Draws random numbers in a branch of its step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs + self.generator.normal(tf.shape(inputs)))

    def train_step(self, data: Any) -> Any:
        x, y = data
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: x + tf.random.uniform(tf.shape(x)), lambda: x)
        return super().train_step((x, y))


def seeded() -> Any:
    layers: list[Any] = [keras.layers.GaussianNoise(0.1), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [{"jit_compile": False}, {"jit_compile": False, "steps_per_execution": 2}, {"jit_compile": True}]
)
def test_only_random_ops_are_found_and_each_by_kind_and_layer(how: dict[str, Any]) -> None:
    noisy = keras.Sequential([keras.Input((4,)), Noisy(name="my_noise"), keras.layers.Dense(1)])
    wanted = {noisy: "RandomStandardNormal in .*my_noise", Branching(): "RandomUniform", seeded(): None}
    for model, pattern in wanted.items():
        model.compile("sgd", "mse", **how)
        model.fit(X, Y, batch_size=4, verbose=0)
        found = find_counting_ops(model)
        assert len(found) == (pattern is not None), found
        if pattern is not None:
            assert re.match(pattern, found[0]), found


def test_a_fit_names_its_random_ops_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([keras.Input((4,)), Noisy(name="told_once"), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with caplog.at_level(logging.WARNING, "procsv"):
        for number in range(2):
            model.fit(X, Y, verbose=0, callbacks=[procsv.keras.BackupAndRestore(tmp_path / str(number))])
            for thread in threading.enumerate():
                if thread.name == "procsv-random-ops":
                    thread.join()
    said = [record.getMessage() for record in caplog.records if "count by themselves" in record.getMessage()]
    assert len(said) == 1, said
    assert "told_once" in said[0]
    assert "SeedGenerator" in said[0]
