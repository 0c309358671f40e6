"""Sparse updates write into a variable in place, yet its capture stays whole without a copy."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.training.graph.capture import Capture
from procsv.training.graph.save_config import SaveConfig, plan_of
from procsv.training.graph.saver_ops import read_save_graph
from procsv.training.snapshots.backends import SlotBackend

tf1 = tf.compat.v1
ROWS = np.array([1, 5, 7])


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="procsv-test-") as directory:
        yield Path(directory)


def _updates(table: Any) -> dict[str, Any]:
    """Return ops that change some rows of `table`, a resource variable, each in its own way."""
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ROWS))
    ones = tf.ones([len(ROWS), table.shape[1]])
    optimizers = [
        tf1.train.GradientDescentOptimizer(-1.0),
        tf1.train.MomentumOptimizer(-1.0, 0.5),
        tf1.train.AdagradOptimizer(-1.0),
        tf1.train.AdamOptimizer(-1.0),
        tf1.train.RMSPropOptimizer(-1.0),
        tf1.train.FtrlOptimizer(1.0),
    ]
    return {
        **{type(o).__name__: o.minimize(loss) for o in optimizers},
        "scatter_add": tf1.scatter_add(table, ROWS, ones),
        "scatter_nd_add": tf1.scatter_nd_add(table, ROWS[:, None], ones),
        "slice": table[1:4].assign(table[1:4] + ones),
        "in a loop": tf.while_loop(lambda i: i < 2, lambda i: _again(table, i, ones), [tf.constant(0)]),
    }


def _again(table: Any, i: Any, ones: Any) -> Any:
    with tf.control_dependencies([tf1.scatter_add(table, ROWS, ones)]):
        return i + 1


def test_no_sparse_update_changes_a_capture(shm: Path) -> None:
    with tf.Graph().as_default() as graph:
        table = tf1.get_variable("table", [2000, 20], initializer=tf1.random_normal_initializer(), use_resource=True)
        plain = tf1.get_variable("plain", [3], initializer=tf1.zeros_initializer(), use_resource=True)
        updates = _updates(table)
        saver = tf1.train.Saver([table, plain])
        config = SaveConfig.from_graph(
            saver, graph, None, plan_of(saver, "/tmp/none/model.ckpt", 1.0), None, has_meta=False
        )
        assert config.capture is not None
        number = [item.key for item in config.capture.distinct].index("table")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            source = config.source_of(session)
            way = SlotBackend(SlotPool(shm, "0123456789abcdef", TRAINER, 1), source, "test")
            way.reserve()
            writer = way.pool.begin_snapshot()
            assert writer is not None
            memory = writer.memory
            for name, update in updates.items():
                session.run(update)  # from here on reads of the table may be copies
                held = source.capture(memory).arrays[number]
                again = source.capture(memory).arrays[number]
                assert held.ctypes.data == again.ctypes.data, f"{name}: it was read by a copy"
                before = session.run(table)
                assert held.tobytes() == before.tobytes(), name
                del again
                session.run(update)
                assert held.tobytes() == before.tobytes(), f"{name}: changed while it was held"
                assert session.run(table).tobytes() != before.tobytes(), name
                del held
        way.close()


def test_a_variable_without_sparse_updates_is_only_read() -> None:
    with tf.Graph().as_default() as graph:
        dense = tf1.get_variable("dense", [3], use_resource=True)
        tf1.train.AdamOptimizer().minimize(tf.reduce_sum(dense))
        saved = read_save_graph(tf1.train.Saver(), graph)
        before = len(graph.get_operations())
        capture = Capture(saved, graph, None)

        assert sorted(op.type for op in graph.get_operations()[before:]) == ["PyFunc", "_ReadVariablesOp"]
        assert len(capture.op.inputs) == len(capture.distinct)
