"""What TensorFlow's class does wrong where it can be seen in the files: torn checkpoints, graphs written again, shards."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, said, saved, wait_for
from tests.support.launched import environment

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def test_whether_checkpoints_mix_the_states_of_several_steps(kind: Kind, tmp_path: Path) -> None:
    step = tf1.train.get_or_create_global_step()
    weights = [
        tf1.get_variable(f"w{i}", [2_000_000], initializer=tf1.zeros_initializer(), use_resource=False)
        for i in range(3)
    ]
    train = tf.group(tf1.assign_add(step, 1), *[tf1.assign_add(w, tf.ones_like(w)) for w in weights])
    saver = tf1.train.Saver(max_to_keep=40)
    supervisor = kind.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.05, save_summaries_secs=0)
    steps_of: dict[str, set[float]] = {}

    def has_seen_enough(session: Any) -> bool:
        # Steps without a pause: TensorFlow's are torn where a step runs while the variables are written.
        for _ in range(20):
            session.run(train)
        for path in set(saver.last_checkpoints) - set(steps_of):
            steps_of[path] = steps_in(path)
        is_torn = any(len(steps) > 1 for steps in steps_of.values())
        return len(steps_of) >= 4 and (is_torn or kind.differs("whole checkpoints"))

    def steps_in(path: str) -> set[float]:
        reader = tf.train.load_checkpoint(path)
        parts = [x for w in weights for x in reader.get_tensor(w.op.name)[::1000]]
        return {float(x) for x in (reader.get_tensor("global_step"), *parts)}

    # With as many threads as this machine has cores, a single core would write and step in turns.
    config = tf1.ConfigProto(inter_op_parallelism_threads=4)
    with supervisor.managed_session(config=config) as session:
        wait_for(lambda: has_seen_enough(session))
    steps_of.update({path: steps_in(path) for path in saver.last_checkpoints})
    torn = sum(len(steps) > 1 for steps in steps_of.values())
    misnamed = sum(int(path.rpartition("-")[2]) not in steps for path, steps in steps_of.items() if len(steps) == 1)
    assert (torn == 0) is kind.differs("whole checkpoints")
    marked = {e.step for e in events(tmp_path) if said(e) == "CHECKPOINT"}
    named = {int(path.rpartition("-")[2]) for path in saver.last_checkpoints}
    if kind.differs("CHECKPOINT step"):
        assert misnamed == 0
        assert named <= marked
    else:
        assert not named <= marked


def test_how_often_a_graph_is_written(kind: Kind, tmp_path: Path) -> None:
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
    """The chief's server, in this process, and one in a process of its own, to which a relative path is another file."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("localhost", 0))
        two.bind(("localhost", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    cluster = {"chief": [f"localhost:{ports[0]}"], "ps": [f"localhost:{ports[1]}"]}
    program = f"import tensorflow as tf; tf.compat.v1.train.Server({cluster!r}, job_name='ps').join()"
    elsewhere.mkdir()
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, cwd=elsewhere, env=environment(), stderr=subprocess.DEVNULL) as process:
        try:
            yield tf1.train.Server(cluster, job_name="chief")
        finally:
            process.kill()


def test_shards_of_a_parameter_server_that_shares_no_files(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with parameter_server(tmp_path / "there") as server:
        with tf.device("/job:chief"):
            step = tf1.train.get_or_create_global_step()
        with tf.device("/job:ps"):
            weights = tf1.get_variable("weights", [100], initializer=tf1.ones_initializer())
        train = tf.group(tf1.assign_add(step, 1), tf1.assign_add(weights, tf.ones([100])))
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
        else:
            with pytest.raises((tf.errors.NotFoundError, ValueError, tf.errors.OpError)):
                train_a_step()
