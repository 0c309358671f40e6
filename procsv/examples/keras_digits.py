"""keras_digits: train a Keras model on handwritten digits with model.fit.

    procsv launch --logdir runs/keras procsv.examples.keras_digits [--epochs N] [--seed N] [--batch-ms MS] ...
    python -m procsv.examples.keras_digits [--logdir DIR] ...

The images are the same as in procsv.examples.digits. The program needs one line for procsv: the
BackupAndRestore in the list of callbacks.

The other callbacks have state of their own (a learning rate that falls on a plateau, early stopping
with the best weights), and the model draws random numbers (dropout, noise). Even so, a run that was
killed at any batch and restarted ends with exactly the variables and the History of an undisturbed
run:

    test accuracy 0.9749  variables 98c36a2367a89b45  history ac86823106e0b868

The two numbers are the starts of SHA-256 hashes, of all variables and of the History. Every run
with the same options on the same machine has the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv
from procsv.examples.digits import CLASSES, PIXELS, digest, load_images


class Pause(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Pauses after each batch, so that the run is long enough to watch, or to kill."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._seconds:
            threading.Event().wait(self._seconds)


def build_model() -> Any:
    model = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.GaussianNoise(0.05),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=False)
    return model


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="procsv.examples.keras_digits", description="Train digits by model.fit.")
    parser.add_argument("--logdir", help="default: the run's own under procsv launch, else runs/keras_digits")
    parser.add_argument("--epochs", type=int, default=20, help="at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images per batch (%(default)s)")
    parser.add_argument("--batch-ms", type=float, default=0.0, help="pause after each batch, for demonstrations")
    args = parser.parse_args(argv)
    if args.logdir is None and "PROCSV_LOGDIR" not in os.environ:
        args.logdir = "runs/keras_digits"
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(args.seed)
    images, test = load_images(args.seed)
    data = tf.data.Dataset.from_tensor_slices((images.pixels, images.labels))
    model = build_model()
    history = model.fit(
        data.shuffle(len(images), seed=args.seed).batch(args.batch),
        epochs=args.epochs,
        validation_data=(test.pixels, test.labels),
        callbacks=[
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, factor=0.5),
            keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
            Pause(args.batch_ms / 1000),
            procsv.keras.BackupAndRestore(args.logdir),
        ],
        shuffle=False,  # the dataset shuffles
        verbose=2,
    )
    guesses = np.argmax(model.predict(test.pixels, verbose=0), axis=1)
    variables = [*model.variables, *model.optimizer.variables]
    values = {f"{number:03d}": np.asarray(variable) for number, variable in enumerate(variables)}
    lines = np.frombuffer(json.dumps(history.history, sort_keys=True).encode(), np.uint8)
    accuracy = float(np.mean(guesses == test.labels))
    print(f"test accuracy {accuracy:.4f}  variables {digest(values)}  history {digest({'history': lines})}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
