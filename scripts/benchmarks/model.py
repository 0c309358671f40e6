"""Define the graph that every arm trains: steps of a realistic length, and values that reveal a
torn checkpoint.

A step is some matrix products (the forward and backward pass), then 1 is added to every element of
every variable (the update, which reads and writes all bytes) and to the global step. So all
elements always equal the global step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from scripts.benchmarks.settings import Kind

tf1 = tf.compat.v1

Session: TypeAlias = Any  # TensorFlow has no types
Tensor: TypeAlias = Any

BYTES_PER_MB = 1_000_000
BYTES_PER_ELEMENT = 4
WORK_SIZE = 768  # of the matrices


@dataclass(frozen=True, slots=True)
class Model:
    """What the training loop runs."""

    train: Tensor  # the global step after it
    step: Tensor  # the global step as it is


def build_model(mb: float, variables: int, kind: Kind, work: int) -> Model:
    """Build `mb` megabytes in `variables` variables, with `work` matrix products per step. `mb` 0:
    only the global step.
    """
    step = tf1.train.get_or_create_global_step()
    updates = []
    if mb:
        elements = max(1, int(mb * BYTES_PER_MB / BYTES_PER_ELEMENT / variables))
        weights = [
            tf1.get_variable(
                f"weights{number:05d}", [elements], initializer=tf1.zeros_initializer(), use_resource=kind == "resource"
            )
            for number in range(variables)
        ]
        # Use placeholders and the result, because constant or unused ops would be optimized away.
        one, zero = tf1.placeholder_with_default(1.0, []), tf1.placeholder_with_default(0.0, [])
        ones = tf.fill([elements], one + zero * _products(work))
        updates = [tf1.assign_add(variable, ones) for variable in weights]
    with tf.control_dependencies(updates):
        train = tf.identity(tf1.assign_add(step, 1), name="train")
    return Model(train, tf.identity(step))


def _products(count: int) -> Tensor:
    hidden = tf1.random.uniform([WORK_SIZE, WORK_SIZE])
    other = tf1.random.uniform([WORK_SIZE, WORK_SIZE], -0.05, 0.05)
    for _ in range(count):
        hidden = tf.tanh(tf.matmul(hidden, other))
    return hidden[0, 0]


def judge(path: str) -> tuple[bool, bool]:
    """Judge a checkpoint of this model: whether it mixes values of several steps, and whether its
    name has another step.
    """
    reader = tf.train.load_checkpoint(path)
    step = int(reader.get_tensor("global_step"))
    is_misnamed = int(path.rpartition("-")[2]) != step
    for name in reader.get_variable_to_shape_map():
        if name.startswith("weights"):
            values = reader.get_tensor(name)
            if not values.min() == values.max() == step:
                return True, is_misnamed
    return False, is_misnamed
