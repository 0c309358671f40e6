"""The service writes byte for byte what Saver.save would have written, and TensorFlow reads it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from procsv.services.checkpoint.core.facts import SavableState
from procsv.services.checkpoint.store.checkpoint_store import SlotBad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

tf1 = tf.compat.v1


def variable(name: str, value: Any, resource: bool = True, **more: Any) -> Any:
    return tf1.get_variable(name, initializer=tf.constant(value), use_resource=resource, **more)


def plain() -> Any:
    variable("w", np.random.default_rng(1).random((300, 7)).astype(np.float32))
    variable("b", np.arange(5.0), resource=False)
    variable("global_step", np.int64(3))
    return tf1.train.Saver()


def many_types() -> Any:
    variable("bf", np.arange(9).astype(ml_dtypes.bfloat16))
    variable("f8", np.arange(9).astype(ml_dtypes.float8_e5m2))
    variable("half", np.arange(9).astype(np.float16))
    variable("flag", np.array([True, False]))
    variable("c", np.array([1 + 2j], np.complex64))
    variable("u8", np.arange(256).astype(np.uint8))
    variable("empty", np.zeros((0, 4), np.float32))
    variable("scalar", np.float64(2.5))
    return tf1.train.Saver()


def strings() -> Any:
    variable("text", np.array([[b"a", b""], [b"x\0y" * 200, b"\xff"]], dtype=object))
    variable("one", np.array(b"scalar", dtype=object))
    return tf1.train.Saver()


def quantized() -> Any:
    q = tf.bitcast(tf.constant(np.arange(-4, 4).astype(np.int8)), tf.qint8)
    tf1.get_variable("q", initializer=q, use_resource=True)
    return tf1.train.Saver()


def partitioned() -> Any:
    pieces = tf1.fixed_size_partitioner(3)
    tf1.get_variable("p", initializer=tf.constant(np.arange(70.0).reshape(7, 10)), partitioner=pieces)
    variable("z", np.float32(1))
    return tf1.train.Saver()


def sharded() -> Any:
    with tf.device("/cpu:0"):
        variable("a", np.arange(10.0))
    with tf.device("/job:localhost/cpu:0"):
        variable("b", np.arange(20.0))
    return tf1.train.Saver(sharded=True)


def partitioned_and_sharded() -> Any:
    pieces = tf1.fixed_size_partitioner(3)
    with tf.device("/cpu:0"):
        tf1.get_variable("p", initializer=tf.constant(np.arange(70.0).reshape(7, 10)), partitioner=pieces)
    with tf.device("/job:localhost/cpu:0"):
        columns = tf1.fixed_size_partitioner(2, axis=1)
        tf1.get_variable("p2", initializer=tf.constant(np.arange(40.0).reshape(4, 10)), partitioner=columns)
        variable("a", np.arange(20.0))
    return tf1.train.Saver(sharded=True)


def relative_and_padded() -> Any:
    variable("a", np.arange(10.0))
    return tf1.train.Saver(pad_step_number=True, save_relative_paths=True)


CASES = [
    plain,
    many_types,
    strings,
    quantized,
    partitioned,
    sharded,
    partitioned_and_sharded,
    relative_and_padded,
]


@contextlib.contextmanager
def session_of(build: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    with tf1.Graph().as_default() as graph:
        saver = build()
        with tf1.Session(graph=graph) as session:
            session.run(tf1.global_variables_initializer())
            yield saver, session


def read_shards(session: Any) -> tuple[list[list[tuple[str, str, Any]]], dict[str, str]]:
    """Return what the graph's Saver would save, by shard."""
    ops = [op for op in session.graph.get_operations() if op.type == "SaveV2"]
    shards, dtypes = [], {}
    for op in ops:
        names = [n.decode() for n in tf1.make_ndarray(op.inputs[1].op.get_attr("value")).tolist()]
        slices = [s.decode() for s in tf1.make_ndarray(op.inputs[2].op.get_attr("value")).tolist()]
        tensors = list(op.inputs)[3:]
        shard = []
        for name, piece, tensor in zip(names, slices, tensors, strict=True):
            dtypes[name] = tensor.dtype.base_dtype.name
            if tensor.dtype.base_dtype.is_quantized:
                with session.graph.as_default():
                    tensor = tf.bitcast(tensor, tf.int8)
            shard.append((name, piece, session.run(tensor)))
        shards.append(shard)
    return shards, dtypes


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file() and "manifest" not in p.name}


@pytest.mark.parametrize("build", CASES)
def test_files_are_byte_identical_to_those_that_saver_save_writes(
    build: Any, tmp_path: Path, run: Any, store: Any, plan: Any, publish: Any
) -> None:
    with session_of(build) as (saver, session):
        meta = tmp_path / "meta"
        its_plan = plan(
            meta_path=str(meta),
            pad_step_number=saver._pad_step_number,
            save_relative_paths=saver._save_relative_paths,
        )
        saver.save(session, its_plan.save_path, global_step=3)
        expected = contents(run.logdir)
        meta.write_bytes(next(data for name, data in expected.items() if name.endswith(".meta")))
        for name in expected:
            (run.logdir / name).unlink()
        shards, dtypes = read_shards(session)
    sharded_ = bool(saver._sharded)
    assert len(shards) == (2 if sharded_ else 1)
    pool = run.pool()
    info = publish(pool, its_plan, shards, 1, 3, sharded=sharded_, dtypes=dtypes)

    store.persist(SavableState.of_slot(info), "manual", its_plan)

    assert expected == contents(run.logdir)


def test_a_saver_restores_what_was_written(run: Any, store: Any, plan: Any, publish: Any) -> None:
    info = publish(run.pool(), plan(), {"a": np.full(10, 7.0), "global_step": np.array(9, np.int64)}, 4, 9)

    durable = store.persist(SavableState.of_slot(info), "periodic", plan())

    with tf1.Graph().as_default(), tf1.Session() as session:
        a = variable("a", np.zeros(10))
        variable("global_step", np.int64(0))
        tf1.train.Saver().restore(session, tf1.train.latest_checkpoint(str(run.logdir)))
        assert session.run(a).tolist() == [7.0] * 10
    assert (durable.sequence, durable.step, durable.incarnation) == (4, 9, 1)
    assert [durable.path] == list(durable.all_paths)


def test_a_slot_with_changed_bytes_is_never_written_as_a_checkpoint(
    run: Any, store: Any, plan: Any, publish: Any
) -> None:
    info = publish(run.pool(), plan(), {"a": np.full(10, 7.0), "b": np.zeros(3)}, 1, 9)
    with info.path.open("r+b") as file:
        file.seek(4096 + 3)
        file.write(b"!")

    with pytest.raises(SlotBad, match=r": a .* checksum"):
        store.persist(SavableState.of_slot(info), "periodic", plan())
    with pytest.raises(SlotBad, match=r": a .* checksum"):
        store.verify_slot(info)
    assert [p.name for p in run.logdir.iterdir()] == ["procsv"]
    assert list((run.logdir / "procsv" / "staging").iterdir()) == []
