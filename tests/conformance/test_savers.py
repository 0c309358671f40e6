"""TensorFlow alone restores what savers of every kind leave in the logdir."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.differences import Kind
from tests.conformance.logdirs import listed, wait_for

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault

SLOTS = "procsv: snapshots through shared memory, "
OWN_OP = "procsv: checkpoints are written by the Saver's own op on the training thread: "


def _model() -> dict[str, Any]:
    """Return the step and variables of several kinds by their saved names. A step changes all of them."""
    step = tf1.train.get_or_create_global_step()
    with tf.device("/cpu:1"):
        far = tf1.get_variable("far", [7], initializer=tf1.zeros_initializer(), use_resource=False)
    parts = tf1.get_variable(
        "parts", [5, 3], partitioner=tf1.fixed_size_partitioner(2), initializer=tf1.zeros_initializer()
    )
    near = tf1.get_variable("near", [4], tf.float64, initializer=tf1.zeros_initializer(), use_resource=True)
    for variable in (step, far, *parts, near):
        tf1.add_to_collection("train", tf1.assign_add(variable, tf.ones(variable.shape, variable.dtype.base_dtype)).op)
    return {"global_step": step, "far": far, "parts": parts, "near": near}


def _renamed(model: dict[str, Any]) -> Any:
    return tf1.train.Saver(
        {f"as/{name}": variable for name, variable in model.items()},
        max_to_keep=2,
        pad_step_number=True,
        save_relative_paths=True,
    )


def _sharded(model: dict[str, Any]) -> Any:
    return tf1.train.Saver(sharded=True, max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)


def _first_format(model: dict[str, Any]) -> Any:
    return tf1.train.Saver(write_version=tf1.train.SaverDef.V1, max_to_keep=2)


def _built_late(model: dict[str, Any]) -> Any:
    saver = tf1.train.Saver(max_to_keep=0, defer_build=True)
    saver.build()
    return saver


def _with_the_place_in_the_input(model: dict[str, Any]) -> Any:
    iterator = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(1000))
    tf1.add_to_collection("train", iterator.get_next().op)
    saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
    return tf1.train.Saver([*tf1.global_variables(), saveable], max_to_keep=2)


class _SavesItsOwnWay(tf1.train.Saver):  # type: ignore[name-defined]  # tensorflow is untyped
    """A saver whose `save` accepts only the arguments that TensorFlow's classes pass."""

    def save(self, sess: Any, save_path: str, global_step: Any = None) -> Any:
        return super().save(sess, save_path, global_step=global_step)


@dataclass
class Case:
    make: Callable[[dict[str, Any]], Any]
    kept: int | None  # checkpoints left at the end; None: all of them
    in_list: int
    way: str = SLOTS
    names: Callable[[int], str] = field(default=lambda step: f"model.ckpt-{step}")


CASES = {
    "renamed, padded, relative": Case(_renamed, 2, 2, names=lambda step: f"model.ckpt-{step:08d}"),
    "sharded, partitioned, kept by time": Case(_sharded, None, 1),
    "first format": Case(_first_format, 2, 2, way=OWN_OP),
    "built late, nothing deleted": Case(_built_late, None, 1),
    "with a save of its own": Case(lambda model: _SavesItsOwnWay(max_to_keep=2), 2, 2, way=OWN_OP),
    "with the place in the input": Case(_with_the_place_in_the_input, 2, 2, way=OWN_OP),
}


def _left(logdir: Path) -> set[str]:
    """Return the checkpoints in the logdir. The first format has no index."""
    return {path.name.removesuffix(".meta") for path in logdir.glob("*.meta")}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_tensorflow_restores_the_saved_files(
    kind: Kind, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    tf.get_logger().setLevel("INFO")
    case = CASES[name]
    config = tf1.ConfigProto(device_count={"CPU": 2})
    model = _model()
    saver, train = case.make(model), tf1.get_collection("train")
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.1, save_summaries_secs=0)
    ever: set[str] = set()

    def has_saved_enough(session: Any) -> bool:
        session.run(train)
        ever.update(_left(tmp_path))
        return len(ever) >= 4

    with supervisor.managed_session(config=config) as session:
        wait_for(lambda: has_saved_enough(session))
        if kind.name == "tensorflow":  # it saves nothing at the end
            supervisor.request_stop()
            supervisor.coord.join()
            saver.save(session, supervisor.save_path, global_step=model["global_step"])
        last = session.run(model["global_step"])
    ever.update(_left(tmp_path))

    assert Path(listed(tmp_path)[0]).name == case.names(last)
    assert len(listed(tmp_path)[1]) == case.in_list
    if case.kept is None:  # except for the first: time counts from there
        assert len(_left(tmp_path)) >= len(ever) - 1
    else:
        assert _left(tmp_path) == {Path(path).name for path in listed(tmp_path)[1]}
        assert len(_left(tmp_path)) == case.kept
    text = (tmp_path / "checkpoint").read_text()
    assert (str(tmp_path) in text) is (name != "renamed, padded, relative")
    if kind.name == "procsv":
        assert [message for message in caplog.messages if message.startswith((SLOTS, OWN_OP))] == [
            message for message in caplog.messages if message.startswith(case.way)
        ]
        assert sum(message.startswith(case.way) for message in caplog.messages) == 1
    with tf.Graph().as_default():
        model = _model()
        saver = case.make(model)
        with tf1.Session(config=config) as session:
            saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
            for variable in (model["far"], *model["parts"], model["near"], model["global_step"]):
                assert (np.asarray(session.run(variable)) == last).all()
            if name == "with the place in the input":
                assert session.run(tf1.get_default_graph().get_tensor_by_name("IteratorGetNext:0")) == last


def test_an_unbuilt_saver_is_an_error_that_says_so(kind: Kind, tmp_path: Path) -> None:
    _model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=tf1.train.Saver(defer_build=True), save_summaries_secs=0)
    config = tf1.ConfigProto(device_count={"CPU": 2})
    with pytest.raises(RuntimeError, match=r"`build\(\)` should be called before save if defer_build==True"):  # noqa: SIM117
        with supervisor.managed_session(config=config):
            supervisor.wait_for_stop()


def test_an_empty_saver_leaves_the_graph_alone(kind: Kind, tmp_path: Path) -> None:
    tf.constant(1.0, name="only")
    saver = tf1.train.Saver([], allow_empty=True)
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_summaries_secs=0)
    with supervisor.managed_session() as session:
        assert session.run("only:0") == 1.0
        wait_for(lambda: (tmp_path / "model.ckpt.meta").exists())
    assert not list(tmp_path.glob("model.ckpt*.index"))
    assert saver.last_checkpoints == []
