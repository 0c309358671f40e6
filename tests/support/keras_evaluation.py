"""Fit with long evaluations that shuffle: `keras_evaluation.py [--test-ms MS]`.

It prints a digest at the end. With STANDS in the environment it prints `evaluating` late in its
second evaluation, and waits there until the run is asked to stop.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv
from tests.support.standing import stand

TEST_BATCHES, STANDS_AT = 80, 140


class Slow(keras.callbacks.Callback):
    """Slows down the batches of an evaluation."""

    pause_s, batches = 0.0, 0  # on the class: an attribute of the object would be part of the fit

    def __init__(self) -> None:
        super().__init__()
        self._pause = threading.Event()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._pause.wait(self.pause_s)
        Slow.batches += 1
        if "STANDS" in os.environ and Slow.batches == STANDS_AT:
            procsv.extend(600)
            print("evaluating", flush=True)
            stand()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--test-ms", type=float, default=0.0)
    Slow.pause_s = parser.parse_args().test_ms / 1000
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(11)
    x = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    history = model.fit(
        data.shuffle(160, seed=1).batch(16),
        epochs=3,
        validation_data=data.shuffle(160, seed=2).batch(160 // TEST_BATCHES),
        callbacks=[Slow(), procsv.keras.BackupAndRestore()],
        verbose=0,
    )
    found = hashlib.sha256(json.dumps(history.history, sort_keys=True).encode())
    for variable in (*model.variables, *model.optimizer.variables):
        found.update(np.asarray(variable).tobytes())
    print(f"digest {found.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
