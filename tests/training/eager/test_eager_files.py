"""The files of an eager state equal a Checkpoint's, and restore through it and from memory."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.services.checkpoint.format.state_file import write_state
from procsv.training.eager.object_graph import view_of
from procsv.training.snapshots.restore_client import restore_slot
from procsv.training.snapshots.source import CannotRestore
from tests.training.eager.eager_states import (
    assert_same,
    iterator,
    keras_model,
    module,
    snapshot,
    source_of,
    table,
    written,
)


def thousand_layers() -> Any:
    """Make a thousand layers side by side: nested, they would be too deep for Python."""
    import keras

    class Wide(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            # TensorFlow makes a kernel for each new variable name, which takes most of the time.
            self.dense = [keras.layers.Dense(2, name="dense") for _ in range(1000)]

        def build(self, shape: Any) -> None:
            for layer in self.dense:
                layer.build(shape)

    model = Wide()
    model.build((None, 3))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


CASES = {
    "a module of every kind": module,
    "a table": table,
    "an iterator": iterator,
    "Keras with Adam": keras_model(),
    "Keras with an EMA": keras_model("sgd"),
    "a hundred layers": keras_model(layers=100),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_files_equal_a_checkpoints_and_restore_through_it_and_from_memory(case: str, tmp_path: Path, shm: Path) -> None:
    checkpoint, values = CASES[case]()
    before = checkpoint.write(str(tmp_path / "before"))
    slot = snapshot(source_of(checkpoint, tmp_path), shm)
    written(slot, tmp_path / "ours")
    after = checkpoint.write(str(tmp_path / "after"))  # an iterator that prefetches may have another file
    for suffix in (".index", ".data-00000-of-00001"):
        theirs = [f"{before}{suffix}", f"{after}{suffix}"]
        assert any(filecmp.cmp(their, tmp_path / f"ours{suffix}", shallow=False) for their in theirs), suffix
    wanted = values()

    by_file, values_by_file = CASES[case]()
    by_file.read(str(tmp_path / "ours")).assert_consumed()
    assert_same(values_by_file(), wanted)
    by_memory, values_by_memory = CASES[case]()
    restore_slot(slot, source_of(by_memory, tmp_path))
    assert_same(values_by_memory(), wanted)


@pytest.mark.long
def test_the_files_of_a_thousand_layers_equal_a_checkpoints(tmp_path: Path, shm: Path) -> None:
    checkpoint = thousand_layers()
    theirs = checkpoint.write(str(tmp_path / "theirs"))
    written(snapshot(source_of(checkpoint, tmp_path), shm), tmp_path / "ours")
    for suffix in (".index", ".data-00000-of-00001"):
        assert filecmp.cmp(theirs + suffix, f"{tmp_path}/ours{suffix}", shallow=False)


def test_a_restored_variable_shares_the_snapshots_memory_until_it_is_updated(tmp_path: Path, shm: Path) -> None:
    first = tf.Variable(tf.range(1000, dtype=tf.float32))
    slot = snapshot(source_of(tf.train.Checkpoint(v=first), tmp_path), shm)
    before = slot.read_bytes()

    other = tf.Variable(tf.zeros(1000))
    reader = SlotReader(scan_slots(shm)[0])
    entry = next(e for e in reader.contents.shards[0] if e.key.startswith("v/"))
    source_of(tf.train.Checkpoint(v=other), tmp_path).restore(reader)
    memory = np.frombuffer(reader.map, np.float32, 1000, entry.offset)
    view = view_of(other.read_value())
    assert view.__array_interface__["data"][0] == memory.__array_interface__["data"][0]
    del view
    other.assign_add(tf.ones(1000))
    assert np.array_equal(other.numpy(), np.arange(1000) + 1)
    assert slot.read_bytes() == before
    reader.release_lock()


def test_a_checkpoint_manager_continues_from_a_list_with_times(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    paths = [checkpoint.save(str(tmp_path / "ckpt")) for _ in range(3)]
    write_state(tmp_path / "checkpoint", str(tmp_path / "ckpt"), paths, relative=True, lists_times=True)

    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    assert manager.checkpoints == paths
    newest = manager.save()
    assert newest == str(tmp_path / "ckpt-4")
    assert manager.checkpoints == [paths[2], newest]
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-3.index", "ckpt-4.index"]


def test_a_state_of_objects_that_do_not_exist_yet_is_left_to_tensorflow(tmp_path: Path, shm: Path) -> None:
    whole, half = tf.Module(), tf.Module()
    whole.a, whole.b = tf.Variable(1.0), tf.Variable(2.0)
    half.a = tf.Variable(0.0)
    slot = snapshot(source_of(tf.train.Checkpoint(net=whole), tmp_path), shm)
    other = source_of(tf.train.Checkpoint(net=half), tmp_path)

    with pytest.raises(CannotRestore, match="net/b"):
        restore_slot(slot, other)
    assert half.a.numpy() == 0.0
    written(slot, tmp_path / "ours")
    other.restore(str(tmp_path / "ours"))
    half.b = tf.Variable(0.0)
    assert (half.a.numpy(), half.b.numpy()) == (1.0, 2.0)


def test_another_shape_is_refused_before_anything_changes(tmp_path: Path, shm: Path) -> None:
    slot = snapshot(source_of(tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable([2.0])), tmp_path), shm)
    first, second = tf.Variable(0.0), tf.Variable([0.0, 0.0])
    with pytest.raises(CannotRestore, match="shape"):
        restore_slot(slot, source_of(tf.train.Checkpoint(a=first, b=second), tmp_path))
    assert first.numpy() == 0.0
