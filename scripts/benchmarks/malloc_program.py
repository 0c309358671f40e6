"""The program of table `malloc`: train one of four models for some seconds, and write steps per
second and peak size.

    procsv launch --malloc keep scripts.benchmarks.malloc_program MODEL SECONDS FILE
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

WARM_UP_STEPS = 5
BATCH, WIDTH = 1024, 1024
IMAGES, PIXELS, CHANNELS = 64, 48, 32
WORDS, LENGTH = 200_000, 64

tf1 = tf.compat.v1
Step = Callable[[], object]


def main(model: str, seconds: float, out: Path) -> None:
    step = MODELS[model]()
    for _ in range(WARM_UP_STEPS):
        step()
    count, begun_s = 0, time.monotonic()
    while time.monotonic() - begun_s < seconds:
        step()
        count += 1
    rate = count / (time.monotonic() - begun_s)
    out.write_text(json.dumps({"rate": rate, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def dense() -> Step:
    hidden = tf1.random.normal([BATCH, WIDTH])
    for layer in range(4):
        weights = tf1.get_variable(f"weights{layer}", [WIDTH, WIDTH])
        hidden = tf.nn.relu(hidden @ weights)
    return _in_session(tf.reduce_mean(hidden**2))


def convolution() -> Step:
    images = tf1.random.normal([IMAGES, PIXELS, PIXELS, 3])
    for layer, channels in enumerate((3, CHANNELS, CHANNELS)):
        kernel = tf1.get_variable(f"kernel{layer}", [3, 3, channels, CHANNELS])
        images = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME"))
    return _in_session(tf.reduce_mean(images**2))


def embedding() -> Step:
    table = tf1.get_variable("table", [WORDS, LENGTH])
    words = tf1.random.uniform([4 * BATCH, 16], 0, WORDS, tf.int32)
    return _in_session(tf.reduce_mean(tf.reduce_sum(tf.nn.embedding_lookup(table, words), 1) ** 2))


def keras() -> Step:
    layers = [tf.keras.layers.Dense(WIDTH, "relu") for _ in range(4)]
    model = tf.keras.Sequential([tf.keras.Input([WIDTH]), *layers, tf.keras.layers.Dense(10)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows, labels = tf.random.normal([BATCH, WIDTH]), tf.zeros([BATCH], tf.int32)
    return lambda: model.train_on_batch(rows, labels)


def _in_session(loss: tf.Tensor) -> Step:
    train = tf1.train.AdamOptimizer(1e-4).minimize(loss)
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    return lambda: session.run(train)


MODELS: dict[str, Callable[[], Step]] = {
    "dense": dense,
    "convolution": convolution,
    "embedding": embedding,
    "keras": keras,
}

if __name__ == "__main__":
    if sys.argv[1] != "keras":
        tf1.disable_eager_execution()
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
