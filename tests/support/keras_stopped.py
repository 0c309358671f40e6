"""Stop a fit from the program's own SIGTERM handler, at a batch or at the end of an epoch.

With WAITS in the environment the fit waits there for the signal.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np

EPOCHS, STOPPED_AT = 4, 13  # in the second of them


def main(at: str, waits: bool) -> None:
    asked, made = list[int](), list[int]()

    def wait_asked() -> None:
        while waits and not asked:
            time.sleep(0.01)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            print("a batch", flush=True)
            made.append(batch)
            if at == "batch" and len(made) == STOPPED_AT:
                wait_asked()
            self.model.stop_training |= bool(asked) and at == "batch"

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if at == "epoch" and epoch == 1:
                wait_asked()
            self.model.stop_training |= bool(asked) and at == "epoch"

    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", jit_compile=False)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
    history = model.fit(x, x.sum(1), epochs=EPOCHS, batch_size=16, verbose=0, callbacks=[rate, Stop()])
    kept = [*history.history["loss"], *history.epoch, *(weight.tobytes() for weight in model.get_weights())]
    print("digest", hashlib.sha256(repr(kept).encode()).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], waits="WAITS" in os.environ)
