"""A CheckpointManager shows a program the same as TensorFlow's, with every argument that one accepts."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import procsv
from procsv.training.eager import private
from procsv.training.eager.state import EagerState
from procsv.training.runtime.context import watched
from tests.support.numpy_state import numpy_plan

managers = pytest.mark.parametrize("manager_of", [tf.train.CheckpointManager, procsv.CheckpointManager])
Made = Callable[..., Any]


def close(manager: Any) -> None:
    if isinstance(manager, procsv.CheckpointManager):
        manager.close()


def names(paths: Any) -> list[str]:
    return [Path(path).name for path in paths]


@managers
def test_a_write_callback_takes_the_path_or_nothing(manager_of: Made, tmp_path: Path) -> None:
    called: list[str] = []
    options = tf.train.CheckpointOptions(
        experimental_write_callbacks=[lambda path: called.append(path), lambda: called.append("nothing")]
    )
    manager = manager_of(tf.train.Checkpoint(v=tf.Variable(1.0)), str(tmp_path / "run"), max_to_keep=5)
    path = manager.save(options=options)
    assert called == [path, "nothing"]
    close(manager)


def tensor_list(size: int) -> Any:
    return tf.raw_ops.TensorListFromTensor(tensor=tf.range(size), element_shape=tf.constant([], tf.int32))


def variant(size: int) -> Any:
    """Make a variable that holds a list of tensors."""
    kind: Any = next(c for c in type(tf.Variable(0)).__mro__ if c.__name__ == "ResourceVariable")
    return kind(initial_value=tensor_list(size), dtype=tf.variant, shape=tf.TensorShape([]))


def test_a_variable_of_variants_is_saved_as_tensorflow_does(tmp_path: Path) -> None:
    saved = []
    for manager_of in (tf.train.CheckpointManager, procsv.CheckpointManager):
        held, plain = variant(3), tf.Variable(1.0)
        manager = manager_of(
            tf.train.Checkpoint(held=held, v=plain), str(tmp_path / manager_of.__module__), max_to_keep=5
        )
        saved.append(manager.save())
        held.assign(tensor_list(7))
        manager.sync()
        close(manager)
    theirs, ours = saved
    assert filecmp.cmp(f"{theirs}.data-00000-of-00001", f"{ours}.data-00000-of-00001", shallow=False)
    found = variant(1)
    tf.train.Checkpoint(held=found, v=tf.Variable(0.0)).restore(ours).assert_existing_objects_matched()
    stacked = tf.raw_ops.TensorListStack(
        input_handle=found.read_value(), element_shape=tf.constant([], tf.int32), element_dtype=tf.int32
    )
    assert stacked.numpy().tolist() == [0, 1, 2]


@managers
def test_an_asynchronous_checkpoint_is_saved_as_of_its_own_moment(manager_of: Made, tmp_path: Path) -> None:
    if private.async_checkpoint is None:
        pytest.skip("this TensorFlow has none")
    v = tf.Variable(3.0)
    checkpoint = private.async_checkpoint(tf.train.Checkpoint, v=v)
    manager = manager_of(checkpoint, str(tmp_path / "run"), max_to_keep=5)
    path = manager.save()
    v.assign(7.0)
    manager.sync()
    assert manager.latest_checkpoint == path
    found = tf.Variable(0.0)
    tf.train.Checkpoint(v=found).restore(path).assert_existing_objects_matched()
    assert found.numpy() == 3.0
    assert int(checkpoint.save_counter) == 1
    close(manager)


def test_a_checkpoint_that_writes_later_is_an_error_and_not_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    source = EagerState(checkpoint, numpy_plan(tmp_path), lambda: 1)
    monkeypatch.setattr(type(checkpoint), "write", lambda _, path: path)
    with pytest.raises(OSError, match="has not written"):
        source.save_to(tmp_path, 1)


@managers
def test_a_closed_manager_lists_what_it_had_and_enters_no_run(manager_of: Made, tmp_path: Path) -> None:
    v = tf.Variable(1.0)
    manager = manager_of(tf.train.Checkpoint(v=v), str(tmp_path / "run"), max_to_keep=2)
    for value in (1.0, 2.0, 3.0):
        v.assign(value)
        manager.save()
    manager.sync()
    close(manager)
    assert names(manager.checkpoints) == ["ckpt-2", "ckpt-3"]
    assert Path(manager.latest_checkpoint).name == "ckpt-3"
    assert not watched()

    other = manager_of(tf.train.Checkpoint(v=v), str(tmp_path / "run"), max_to_keep=2)
    assert names(other.checkpoints) == ["ckpt-2", "ckpt-3"]
    close(other)


@managers
def test_the_last_save_wins_whatever_was_under_its_name(manager_of: Made, tmp_path: Path) -> None:
    """A program that saves without restoring does this."""
    for value, saves in ((1.0, 2), (2.0, 1)):
        v = tf.Variable(value)
        manager = manager_of(tf.train.Checkpoint(v=v), str(tmp_path / "run"), max_to_keep=3)
        for _ in range(saves):
            manager.save()
        manager.sync()
        close(manager)
    state = tf.train.get_checkpoint_state(str(tmp_path / "run"))
    assert names(state.all_model_checkpoint_paths) == ["ckpt-2", "ckpt-1"]
    found = tf.Variable(0.0)
    tf.train.Checkpoint(v=found).restore(state.model_checkpoint_path).assert_existing_objects_matched()
    assert found.numpy() == 2.0


@managers
def test_saves_are_numbered_as_requested_and_spaced_by_the_step_counter(manager_of: Made, tmp_path: Path) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    manager = manager_of(
        tf.train.Checkpoint(step=step),
        str(tmp_path / "run"),
        max_to_keep=None,
        checkpoint_name="model",
        step_counter=step,
        checkpoint_interval=3,
    )
    assert manager.checkpoint_interval == 3
    saved = []
    for _ in range(6):
        step.assign_add(1)
        saved.append(manager.save(checkpoint_number=step))
    assert names(path for path in saved if path) == ["model-1", "model-4"]
    assert Path(manager.save(check_interval=False)).name == "model-3"
    assert manager.save() is None  # this step already has one
    manager.sync()
    assert names(manager.checkpoints) == ["model-1", "model-4", "model-3"]
    close(manager)


@managers
def test_a_new_training_calls_the_initializer_and_a_restored_one_does_not(manager_of: Made, tmp_path: Path) -> None:
    called: list[str] = []
    for number, expected in enumerate((None, "ckpt-1")):
        v = tf.Variable(float(number))
        manager = manager_of(
            tf.train.Checkpoint(v=v), str(tmp_path / "run"), max_to_keep=3, init_fn=lambda: called.append("called")
        )
        found = manager.restore_or_initialize()
        assert (found and Path(found).name) == expected
        assert v.numpy() == 0.0
        if number == 0:
            manager.save()
            manager.sync()
        close(manager)
    assert called == ["called"]
