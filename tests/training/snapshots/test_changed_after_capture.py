"""A snapshot holds its own moment though the whole state changes right after the capture, for every
state source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.store.write import read_back, write_files
from procsv.training.eager.state import EagerState
from procsv.training.graph.save_config import SaveConfig, plan_of
from procsv.training.keras.callbacks import mark_begun, mark_fresh, read_callbacks
from procsv.training.keras.file_writer import FileWriter
from procsv.training.keras.state import FitState
from procsv.training.snapshots.backends import SlotBackend
from procsv.training.snapshots.source import StateSource
from tests.support.numpy_kind import NumpyKind
from tests.support.numpy_state import numpy_plan
from tests.support.state_contract import RUN, what_is_captured_stays_as_it_was_while_training_goes_on

tf1 = tf.compat.v1
ROWS = 3000  # of 16 floats: more than one copied piece

Change = Callable[[], Any]
Write = Callable[[str], str]  # writes the state with TensorFlow itself to a prefix; returns the checkpoint's path
Made = tuple[StateSource, Change, Write]


class Live(tf.Module):
    """Saves a NumPy array that it changes in place. TensorFlow shares its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros([ROWS, 16], np.float32)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"array": tf.convert_to_tensor(self.array)}

    def _restore_from_tensors(self, restored: dict[str, Any]) -> None:
        self.array[...] = restored["array"]


class Counter(tf.train.experimental.PythonState):
    n = 0

    def serialize(self) -> str:
        return str(self.n)

    def deserialize(self, text: str) -> None:
        self.n = int(text)


def rows() -> Any:
    return tf.Variable(tf.zeros([ROWS, 16]))


def some_rows() -> Any:
    return tf.IndexedSlices(tf.ones([2, 16]), tf.constant([3, 7]), tf.constant([ROWS, 16]))


def eager_objects() -> tuple[dict[str, Any], Change]:
    """Return all kinds that a Checkpoint tracks, with the usual way to change each."""
    xla, dense, sparse, strided = (rows() for _ in range(4))
    text, half, flag = tf.Variable(["a", "b"]), tf.Variable(tf.zeros([9], tf.bfloat16)), tf.Variable(False)
    adam = tf.Variable(tf.ones([ROWS, 16]))
    optimizer = keras.optimizers.Adam()
    optimizer.build([adam])
    generator = tf.random.Generator.from_seed(3)
    strings = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    numbers = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0] * 16)
    packed = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, [0.0] * 16, empty_key=-1, deleted_key=-2)
    elements = iter(tf.data.Dataset.range(1000).shuffle(9, seed=1))
    counter, live, count = Counter(), Live(), tf.Variable(0, dtype=tf.int64)

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]  # tensorflow is untyped
    def change_by_xla() -> None:
        xla.assign(xla + 1.0)

    def change() -> None:
        count.assign_add(1)
        change_by_xla()
        dense.assign_add(tf.ones([ROWS, 16]))
        sparse.scatter_sub(some_rows())
        sparse.scatter_nd_update([[5]], tf.fill([1, 16], float(count)))
        strided[2:4].assign(tf.fill([2, 16], float(count)))
        text.assign(["c", str(int(count))])
        half.assign_add(tf.ones([9], tf.bfloat16))
        flag.assign(tf.logical_not(flag))
        optimizer.apply_gradients([(some_rows(), adam)])
        generator.normal([4])
        keys = tf.range(50, dtype=tf.int64)
        strings.insert(tf.strings.as_string(keys), keys + count)
        numbers.insert(keys, tf.fill([50, 16], float(count)))
        packed.insert(keys, tf.fill([50, 16], float(count)))
        next(elements)
        counter.n += 1
        live.array += 1.0

    objects = {
        "variables": [xla, dense, sparse, strided, text, half, flag, adam, count],
        "optimizer": optimizer,
        "generator": generator,
        "tables": [strings, numbers, packed],
        "elements": elements,
        "counter": counter,
        "live": live,
    }
    return objects, change


def eager(stack: ExitStack, directory: Path) -> Made:
    objects, change = eager_objects()
    checkpoint = tf.train.Checkpoint(**objects)
    return EagerState(checkpoint, numpy_plan(directory), lambda: 1), change, checkpoint.write


class Collecting(keras.callbacks.Callback):
    """Changes its contents in place."""

    def __init__(self) -> None:
        super().__init__()
        self.average = np.zeros([ROWS, 16], np.float32)
        self.seen: list[Any] = []
        self.by_name: dict[str, Any] = {"worst": [np.zeros(3)]}

    def change(self) -> None:
        self.average += 1.0
        self.seen.append(len(self.seen))
        self.by_name["worst"][0] += 1.0


def fit(stack: ExitStack, directory: Path) -> Made:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6), keras.layers.Dropout(0.3)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    callback = Collecting()
    mark_fresh([callback])
    mark_begun([callback])
    count = [0]
    runtime: Any = None  # this fit writes no files
    source = FitState(
        model,
        numpy_plan(directory),
        lambda place: True,
        lambda: {"fit": 1, "callbacks": read_callbacks([callback])},
        lambda: count[0],
        lambda _: None,
        lambda: 0,
        FileWriter(runtime),
    )

    def change() -> None:
        count[0] += 1
        callback.change()
        model.train_on_batch(np.ones((2, 5)), np.full((2, 6), float(count[0])))

    return source, change, source.tracked.write


def graph(stack: ExitStack, directory: Path, *, resource: bool = True) -> Made:
    made = stack.enter_context(tf.Graph().as_default())
    step = tf1.train.get_or_create_global_step()
    names = ("dense", "sparse", "strided")
    zeros = tf1.zeros_initializer()
    dense, sparse, strided = (tf1.get_variable(n, [ROWS, 16], initializer=zeros, use_resource=resource) for n in names)
    text = tf1.get_variable("text", initializer=["a", "b"], use_resource=resource)
    strings = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    packed = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, [0.0] * 16, empty_key=-1, deleted_key=-2, name="packed"
    )
    now, keys = tf.cast(step, tf.float32), tf.range(50, dtype=tf.int64)
    optimizer = tf1.train.AdamOptimizer()
    changes = [
        tf1.assign_add(dense, tf.ones([ROWS, 16])),
        tf1.scatter_update(sparse, [3, 7], tf.fill([2, 16], now)),
        strided[2:4].assign(tf.fill([2, 16], now)),
        tf1.assign(text, [tf.strings.as_string(step), "c"]),
        optimizer.minimize(tf.reduce_sum(tf.gather(sparse, [1, 2]) * now) + tf.reduce_sum(dense)),
        strings.insert(tf.strings.as_string(keys), keys + step),
        packed.insert(keys, tf.fill([50, 16], now)),
    ]
    with tf.control_dependencies([tf.group(*changes)]):
        train = tf1.assign_add(step, 1).op
    saver = tf1.train.Saver()
    init = tf1.global_variables_initializer()
    config = SaveConfig.from_graph(saver, made, step, plan_of(saver, "/nowhere/model.ckpt", 1.0), None, has_meta=False)
    session = stack.enter_context(tf1.Session(graph=made))
    session.run(init)
    source = config.source_of(session)
    stack.callback(source.close)
    return source, lambda: session.run(train), lambda prefix: str(saver.save(session, prefix, write_state=False))


def graph_of_refs(stack: ExitStack, directory: Path) -> Made:
    return graph(stack, directory, resource=False)


@contextmanager
def slots(source: StateSource) -> Iterator[tuple[SlotBackend, Path]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="procsv-test-")))
        backend = SlotBackend(SlotPool(directory, RUN, TRAINER, 1), source, "test")
        stack.callback(backend.close)
        backend.reserve()
        yield backend, directory


@pytest.mark.parametrize("make", [eager, fit, graph, graph_of_refs])
def test_no_change_right_after_a_capture_is_in_the_snapshot(
    make: Callable[[ExitStack, Path], Made], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        source, change, write_by_tensorflow = make(stack, tmp_path)
        change()  # create everything that is created on first use
        source.warm_up()
        backend, shm = stack.enter_context(slots(source))
        for sequence in range(1, 6):
            change()
            theirs = write_by_tensorflow(str(tmp_path / f"theirs-{sequence}"))
            finish = backend.capture(sequence, "")
            assert finish is not None
            change()
            change()
            finish()
            reader = SlotReader(scan_slots(shm)[0])
            ours = str(tmp_path / f"ours-{sequence}")
            read_back(write_files(reader.contents, reader.map, ours))
            reader.close()
            assert_same_state(ours, theirs)


def assert_same_state(ours: str, theirs: str) -> None:
    """Compare each tensor of two checkpoints byte for byte, or by file where only the file tells them apart."""
    mine, other = tf.train.load_checkpoint(ours), tf.train.load_checkpoint(theirs)
    types = other.get_variable_to_dtype_map()
    assert mine.get_variable_to_dtype_map() == types
    for key, dtype in types.items():
        if dtype != tf.variant:
            one, two = np.asarray(mine.get_tensor(key)), np.asarray(other.get_tensor(key))
            assert one.shape == two.shape, key
            assert one.tobytes() == two.tobytes() or one.tolist() == two.tolist(), key


def test_no_change_of_numpy_arrays_right_after_a_capture_is_in_the_snapshot() -> None:
    what_is_captured_stays_as_it_was_while_training_goes_on(NumpyKind())
