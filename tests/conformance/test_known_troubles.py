"""TensorFlow's known faults in the files (torn checkpoints, repeated graphs, lost shards) are absent from ours."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, said, saved, wait_for
from tests.support.launched import background
from tests.support.ports import hold_ports

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


class Read(SaveableObject):
    """What a Saver saves for a variable: `value`, however it is read."""

    def __init__(self, variable: Any, value: Any) -> None:
        super().__init__(value, [SaveSpec(value, "", variable.op.name)], variable.op.name)
        self._variable = variable

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        return tf1.assign(self._variable, restored_tensors[0])


class SlowReading:
    """A variable that is slow to read, as on another machine: the read waits for two more steps if they can run."""

    def __init__(self, limit_s: float) -> None:
        self.steps = 0  # finished steps
        self.is_over = False
        self._limit_s = limit_s

    def read(self, value: Any) -> Any:
        kept, until_s, pause = value.copy(), time.monotonic() + self._limit_s, threading.Event()
        last = self.steps + 2
        while self.steps < last and not self.is_over and time.monotonic() < until_s:
            pause.wait(0.001)
        return kept


def test_a_checkpoint_holds_the_state_of_one_step(kind: Kind, tmp_path: Path) -> None:
    step = tf1.train.get_or_create_global_step()
    zeros = tf1.zeros_initializer()
    weights = [tf1.get_variable(f"w{i}", [10], initializer=zeros, use_resource=False) for i in range(2)]
    train = tf.group(tf1.assign_add(step, 1), *[tf1.assign_add(w, tf.ones_like(w)) for w in weights])
    reading = SlowReading(limit_s=0.01 if kind.differs("whole checkpoints") else 60.0)
    first = tf1.py_func(reading.read, [weights[0]], tf.float32)
    with tf.control_dependencies([first]):
        last = tf1.py_func(np.copy, [weights[1]], tf.float32)
    reads = [Read(variable, value) for variable, value in zip(weights, (first, last), strict=True)]
    saver = tf1.train.Saver([step, *reads], max_to_keep=1000)
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.05, save_summaries_secs=0)

    def has_seen_enough(session: Any) -> bool:
        session.run(train)
        reading.steps += 1
        return len(saver.last_checkpoints) >= 3

    # The session gets its own thread pool: on one core, a default pool would save and train in
    # turns.
    config = tf1.ConfigProto(inter_op_parallelism_threads=4, use_per_session_threads=True)
    with supervisor.managed_session(config=config) as session:
        wait_for(lambda: has_seen_enough(session))
        reading.is_over = True
    torn = misnamed = 0
    for path in saver.last_checkpoints:
        reader = tf.train.load_checkpoint(path)
        steps = {float(x) for w in weights for x in reader.get_tensor(w.op.name)}
        torn += len(steps) > 1
        misnamed += int(path.rpartition("-")[2]) not in steps
    assert (torn == 0) is kind.differs("whole checkpoints")
    marked = {e.step for e in events(tmp_path) if said(e) == "CHECKPOINT"}
    named = {int(path.rpartition("-")[2]) for path in saver.last_checkpoints}
    if kind.differs("CHECKPOINT step"):
        assert misnamed == 0
        assert named <= marked
    else:
        assert not named <= marked


def test_a_graph_is_written_once(kind: Kind, tmp_path: Path) -> None:
    Model()
    saver = tf1.train.Saver()
    exports: list[int] = []
    export = saver.export_meta_graph

    def counted(*args: Any, **kwargs: Any) -> Any:
        exports.append(1)
        return export(*args, **kwargs)

    saver.export_meta_graph = counted
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.1, save_summaries_secs=0)
    files = []
    for least in (2, 4):
        with supervisor.managed_session() as session:
            train = session.graph.get_operation_by_name("group_deps")
            wait_for(lambda: (session.run(train), len(saver.last_checkpoints) >= least)[1])  # noqa: B023  called at once
            wait_for(lambda: (tmp_path / "graph.pbtxt").exists())
        files.append((tmp_path / "graph.pbtxt").stat().st_mtime_ns)
    assert len(list(tmp_path.glob("model.ckpt-*.meta"))) >= 4
    assert (len(exports) == 1 and files[0] == files[1]) is kind.differs("graph files once")


@contextlib.contextmanager
def parameter_server(elsewhere: Path) -> Iterator[Any]:
    """Start the chief's server in this process and one in another, where a relative path is another file."""
    held = contextlib.ExitStack()
    ports = hold_ports(held)
    cluster = {"chief": [f"localhost:{ports[0]}"], "ps": [f"localhost:{ports[1]}"]}
    program = f"import tensorflow as tf; tf.compat.v1.train.Server({cluster!r}, job_name='ps').join()"
    elsewhere.mkdir()
    (elsewhere / "server.py").write_text(program)
    with (
        held,
        Path(os.devnull).open("w") as nothing,
        background(elsewhere / "server.py", cwd=elsewhere, output=nothing, errors=nothing),
    ):
        yield tf1.train.Server(cluster, job_name="chief")


@pytest.mark.long
def test_a_parameter_server_that_shares_no_files_has_its_shards_saved(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with parameter_server(tmp_path / "there") as server:
        with tf.device("/job:chief"):
            step = tf1.train.get_or_create_global_step()
        with tf.device("/job:ps"), tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(2)):
            weights = tf1.get_variable("weights", [100], initializer=tf1.ones_initializer())
            more = [tf1.assign_add(part, tf.ones([50])) for part in weights]
        train = tf.group(tf1.assign_add(step, 1), *more)
        saver = tf1.train.Saver(sharded=True)
        supervisor = kind.Supervisor(logdir="logdir", saver=saver, save_summaries_secs=0)

        def train_a_step() -> None:
            with supervisor.managed_session(server.target) as session:
                session.run(train)
                if not kind.differs("shards without shared files"):
                    supervisor.wait_for_stop()

        if kind.differs("shards without shared files"):
            train_a_step()
            assert (saved(here / "logdir", "weights") == 2).all()
            assert saved(here / "logdir", "global_step") == 1
            train_a_step()  # the server's restore op does not find the file
            assert (saved(here / "logdir", "weights") == 3).all()
            assert saved(here / "logdir", "global_step") == 2
        else:
            with pytest.raises((tf.errors.NotFoundError, ValueError, tf.errors.OpError)):
                train_a_step()
