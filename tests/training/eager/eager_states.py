"""Eager programs for tests: states of every kind, snapshots of them, and the files made from these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.store.write import read_back, write_files
from procsv.training.eager.state import EagerState
from procsv.training.snapshots.backends import SlotBackend
from tests.support.numpy_state import numpy_plan
from tests.support.state_contract import RUN


class Net(tf.Module):
    """Variables of every kind that files tell apart."""

    def __init__(self) -> None:
        self.w = tf.Variable(tf.random.stateless_normal([8, 8], [1, 2]))
        self.parts = [tf.Variable(1.0), {"a": tf.Variable([1, 2])}]
        self.text = tf.Variable(["x", "yy"])
        self.flag = tf.Variable(True)
        self.short = tf.Variable(tf.cast([1.5], tf.bfloat16))
        self.half = tf.Variable(tf.cast(3.0, tf.float16))
        self.empty = tf.Variable(tf.zeros([0, 3]))
        self.ragged = tf.Variable(tf.zeros([2]), shape=tf.TensorShape(None))
        self.generator = tf.random.Generator.from_seed(3)


def module() -> tuple[Any, Callable[[], Any]]:
    net = Net()
    return tf.train.Checkpoint(net=net, n=tf.Variable(5, dtype=tf.int64)), lambda: [v.numpy() for v in net.variables]


def table() -> tuple[Any, Callable[[], Any]]:
    found = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    found.insert(["a", "b"], [1, 2])
    return tf.train.Checkpoint(t=found, v=tf.Variable(1.0)), lambda: sorted(found.export()[1].numpy().tolist())


def iterator() -> tuple[Any, Callable[[], Any]]:
    elements = iter(tf.data.Dataset.range(40).shuffle(9, seed=1))
    next(elements)
    return tf.train.Checkpoint(elements=elements, v=tf.Variable(1.0)), lambda: [int(next(elements)) for _ in range(9)]


def keras_model(optimizer: str = "adam", layers: int = 1) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def make() -> tuple[Any, Callable[[], Any]]:
        import keras

        hidden = [keras.layers.Dense(6, activation="relu") for _ in range(layers)]
        model = keras.Sequential(
            [keras.Input((5,)), *hidden, keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        )
        model.compile(keras.optimizers.get({"class_name": optimizer, "config": {"use_ema": optimizer == "sgd"}}), "mse")
        model.optimizer.build(model.trainable_variables)
        variables = [*model.weights, *model.optimizer.variables]
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer), lambda: [v.numpy() for v in variables]

    return make


def snapshot(source: EagerState, shm: Path, meanwhile: Callable[[], object] = lambda: None) -> Path:
    """Return a published snapshot. `meanwhile` is called between capture and copy."""
    backend = SlotBackend(SlotPool(shm, RUN, TRAINER, 1), source, "test")
    backend.reserve()
    finish = backend.capture(1, "")
    assert finish is not None
    meanwhile()
    finish()
    backend.close()
    return scan_slots(shm)[0].path


def written(slot: Path, prefix: Path) -> None:
    reader = SlotReader(next(info for info in scan_slots(slot.parent) if info.path == slot))
    read_back(write_files(reader.contents, reader.map, str(prefix)))
    reader.close()


def source_of(checkpoint: Any, logdir: Path) -> EagerState:
    return EagerState(checkpoint, numpy_plan(logdir), lambda: 4)


def assert_same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes() or np.array_equal(one, other)
