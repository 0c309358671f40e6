"""Fit two models one after the other, with random numbers between them: `keras_two_fits.py
[--epochs N] [--quick]`.

It prints a line for each batch of each fit and a digest at the end. With STANDS in the environment
the second fit waits at its tenth batch until the run is asked to stop.
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


class Tell(keras.callbacks.Callback):
    """Prints which fit is training, and pauses so that a snapshot can happen."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__()
        self._name, self._pause, self._seconds = name, threading.Event(), seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        print(f"{self._name} fit, a batch", flush=True)
        self._pause.wait(self._seconds)
        if "STANDS" in os.environ and self._name == "second" and batch == 9:
            stand()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2, help="of the first fit")
    parser.add_argument("--quick", action="store_true", help="without pauses")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(11)
    x = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
    found = hashlib.sha256()
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3)])
    outer = keras.Sequential([keras.Input((8,)), inner, keras.layers.Dense(1)])
    for name, model, epochs in (("first", inner, args.epochs), ("second", outer, 3)):
        model.compile("adam", "mse", jit_compile=False)
        y = np.random.normal(size=(160, *model.output_shape[1:]))
        tell = Tell(name, 0.0 if args.quick else 0.05)
        callbacks = [procsv.keras.BackupAndRestore(), keras.callbacks.EarlyStopping("loss", patience=9), tell]
        history = model.fit(x, y, batch_size=16, epochs=epochs, callbacks=callbacks, verbose=0)
        found.update(json.dumps([history.history, history.epoch], sort_keys=True).encode())
    for variable in (*outer.variables, *outer.optimizer.variables, *inner.variables, *inner.optimizer.variables):
        found.update(np.asarray(variable).tobytes())
    print(f"digest {found.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
