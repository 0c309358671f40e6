"""Run two fits without setting a seed: `keras_unseeded.py`. It prints a line for each batch and a
digest after each fit.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import keras
import numpy as np


class Tell(keras.callbacks.Callback):
    """Prints each batch, and pauses so that a snapshot can happen."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.fit = name

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        print(f"{self.fit} fit, a batch", flush=True)
        threading.Event().wait(0.05)


def main() -> None:
    x = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
    base = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3)])
    head = keras.Sequential([base, keras.layers.Dense(1)])
    for name, model in (("first", base), ("second", head)):
        model.compile("adam", "mse", jit_compile=False)
        model.fit(x, x[:, :1], batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[Tell(name)])
        digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in model.weights)).hexdigest()
        print(f"{name} fit ended with {digest[:16]}", flush=True)


if __name__ == "__main__":
    main()
