"""Define the Keras model to measure, and its data. Used by keras_program.py and keras_trial.py."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LAYERS = 4
BYTES = 12  # per weight: itself, and Adam's two slots
CLASSES = 10
BATCHES = 200  # per epoch


def build_model(mb: float, batch: int) -> tuple[Any, Any]:
    """Return a model with about `mb` megabytes of state, including Adam's slots, and a dataset of
    BATCHES batches.
    """
    keras.utils.set_random_seed(1)
    units = max(8, round(math.sqrt(mb * 1e6 / BYTES / LAYERS)))
    dense = [keras.layers.Dense(units, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((units,)), *dense, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(batch * 4, units)).astype("float32"), rng.integers(0, CLASSES, size=batch * 4)
    return model, tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat().take(BATCHES)
