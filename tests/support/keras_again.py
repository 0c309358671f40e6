"""Call a fit again after an exception: `keras_again.py [--raise-after N] [--pause S] [--directory
DIR]`.

With --directory it uses Keras' own callback, for `--drop-in`. It prints a line for each batch and a
digest at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv


class Tell(keras.callbacks.Callback):
    """Prints each batch, and pauses so that a snapshot can happen."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._pause, self._seconds = threading.Event(), seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        print("a batch", flush=True)
        self._pause.wait(self._seconds)


class Raise(keras.callbacks.Callback):
    """Raises after that many batches of this call."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def get_state(self) -> None:
        """Return nothing: this callback is no part of the fit's state."""

    def set_state(self, state: None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("after so many batches")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--raise-after", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--directory")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(11)
    x = np.random.default_rng(0).normal(size=(320, 8)).astype("float32")
    layers = [keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", jit_compile=False)

    def fit(*more: Any) -> Any:
        ours = keras.callbacks.BackupAndRestore(args.directory) if args.directory else procsv.keras.BackupAndRestore()
        return model.fit(x, x.sum(1), batch_size=16, epochs=4, callbacks=[*more, Tell(args.pause), ours], verbose=0)

    try:
        history = fit(Raise(args.raise_after))
    except RuntimeError:
        print("called again", flush=True)
        history = fit()
    found = hashlib.sha256(json.dumps([history.history, history.epoch], sort_keys=True).encode())
    for variable in (*model.variables, *model.optimizer.variables):
        found.update(np.asarray(variable).tobytes())
    print(f"digest {found.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
