"""custom_loop: train a small Keras network on handwritten digits in a loop of your own, with
tf.function.

    procsv launch --logdir runs/loop procsv.examples.custom_loop [--steps N] [--seed N] [--step-ms MS] ...
    python -m procsv.examples.custom_loop [--logdir DIR] ...

The images are the same as in procsv.examples.digits. `train` shows what a TensorFlow 2 program
needs for procsv: a procsv.CheckpointManager instead of tf.train.CheckpointManager, and a
`manager.step()` at the end of each step.

The checkpoint holds everything that the training depends on: weights, Adam's slots, dropout's
seeds, the step, and the position in the data. So a run that was killed at any step and restarted
ends with exactly the variables of an undisturbed run:

    test accuracy 0.9777  variables 306c907d72b8e6fd

The number after `variables` is the start of the SHA-256 of all variables. Every run with the same
options on the same machine has the same number.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv
from procsv.examples.digits import CLASSES, PIXELS, Images, digest, load_images
from procsv.examples.progress import Progress

SAVE_STEPS = 500  # after so many steps, the program itself saves a checkpoint


class Training(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
    """Model, optimizer, step, and one step of training."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.model = keras.Sequential(
            [
                keras.Input((PIXELS,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(CLASSES),
            ]
        )
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.model.trainable_variables)
        self.seeds = [variable.value for variable in self.model.non_trainable_variables if "seed" in variable.path]
        self.steps_made = tf.Variable(0, dtype=tf.int64)

    @tf.function  # type: ignore[untyped-decorator]  # tf.function is untyped, too
    def step(self, pixels: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = self.model(pixels, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.steps_made.assign_add(1)
        return loss

    def values(self) -> dict[str, Any]:
        """Return all variables, in the order of their creation."""
        variables = [*self.model.variables, *self.optimizer.variables]
        named = {f"{number:03d}": np.asarray(variable) for number, variable in enumerate(variables)}
        return named | {"seeds": np.concatenate([np.ravel(seed) for seed in self.seeds])}


def batches_of(images: Images, size: int, seed: int) -> Any:
    """Return an endless shuffled dataset. A checkpoint can hold the position of its iterator."""
    data = tf.data.Dataset.from_tensor_slices((images.pixels, images.labels))
    return data.shuffle(len(images), seed=seed).repeat().batch(size)


def train(training: Training, images: Images, args: argparse.Namespace) -> int:
    """Train from the newest state, and return the last step."""
    batches = iter(batches_of(images, args.batch, args.seed))
    checkpoint = tf.train.Checkpoint(training=training, batches=batches)
    with procsv.CheckpointManager(checkpoint, args.logdir, step_counter=training.steps_made) as manager:
        manager.restore_or_initialize()
        step = int(training.steps_made)
        progress = Progress(step, args.steps)
        while step < args.steps and not manager.should_stop():
            loss = training.step(*next(batches))
            step = int(training.steps_made)
            manager.step()
            if step % SAVE_STEPS == 0:
                manager.save()
            progress.show(step, f"loss {float(loss):.4f}")
            if args.step_ms:
                threading.Event().wait(args.step_ms / 1000)
        progress.end_line()
    return step


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="procsv.examples.custom_loop", description="Train digits by a loop.")
    parser.add_argument("--logdir", help="default: the run's own under procsv launch, else runs/custom_loop")
    parser.add_argument("--steps", type=int, default=2000, help="step at which training ends (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause after each step, for demonstrations")
    args = parser.parse_args(argv)
    if args.logdir is None and "PROCSV_LOGDIR" not in os.environ:
        args.logdir = "runs/custom_loop"
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    images, test = load_images(args.seed)
    training = Training(args.seed)
    step = train(training, images, args)
    if step < args.steps:
        print(f"stopped at step {step} of {args.steps}", flush=True)
        return 0
    guesses = np.argmax(training.model(test.pixels, training=False), axis=1)
    accuracy = float(np.mean(guesses == test.labels))
    print(f"test accuracy {accuracy:.4f}  variables {digest(training.values())}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
