"""A chief that comes back to a living model on its servers does not undo what the workers have trained."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from procsv.training.sessions.session_manager import WholeMark
from tests.support.launched import Launched, launched, procsv
from tests.support.ports import hold_ports
from tests.support.programs import freeze
from tests.support.replicas import memory_step

tf1 = tf.compat.v1
pytestmark = [pytest.mark.fault, pytest.mark.long]

PS = """
import sys
import tensorflow.compat.v1 as tf

cluster = tf.train.ClusterSpec({"ps": [sys.argv[1]], "chief": [sys.argv[2]]})
server = tf.train.Server(cluster, job_name="ps", task_index=0)
print("serves", flush=True)
server.join()
"""
CHIEF = """
import sys
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.enable_resource_variables()
cluster = tf.train.ClusterSpec({"ps": [sys.argv[1]], "chief": [sys.argv[2]]})
server = tf.train.Server(cluster, job_name="chief", task_index=0)
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.zeros_initializer(), use_resource=True)
train = tf.group(tf.assign_add(weights, tf.ones([1000])), tf.assign_add(step, 1))
if sys.argv[3] == "supervisor":
    supervisor = tf.train.Supervisor(recovery_wait_secs=1, summary_op=None, save_model_secs=600)
    with supervisor.managed_session(server.target) as session:
        while not supervisor.should_stop():
            session.run(train)
            supervisor.coord.wait_for_stop(0.02)
else:
    with tf.train.MonitoredTrainingSession(server.target, checkpoint_dir=sys.argv[4], save_summaries_steps=None, save_summaries_secs=None) as session:
        while not session.should_stop():
            session.run(train)
"""


ONLY_THE_SERVER = tf1.ConfigProto(device_filters=["/job:ps"])


class Worker:
    """A session of this process on the model: it does what another worker of the cluster may do."""

    def __init__(self, target: str) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/job:ps/task:0"):
            self.step = tf1.train.get_or_create_global_step()
            self.weights = tf1.get_variable("weights", [1000], use_resource=True)
            self._value = tf1.placeholder(tf.int64, [])
            as_weight = tf.fill([1000], tf.cast(self._value, tf.float32))
            self._add = tf.group(tf1.assign_add(self.step, self._value), tf1.assign_add(self.weights, as_weight))
            self._put = tf.group(tf1.assign(self.step, self._value), tf1.assign(self.weights, as_weight))
        self.target = target
        self._session = tf1.Session(target, graph=self._graph, config=ONLY_THE_SERVER)

    def add(self, count: int) -> None:
        self._session.run(self._add, {self._value: count})

    def put(self, value: int) -> None:
        self._session.run(self._put, {self._value: value})

    def read(self) -> tuple[int, Any]:
        step, weights = self._session.run([self.step, self.weights])
        return int(step), weights

    def clear_mark(self) -> None:
        mark = WholeMark(self.target, self._graph, ONLY_THE_SERVER)
        mark.clear()
        mark.close()

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Launched, tuple[str, str]]]:
    """Launch a parameter server by itself. Return its address and the one reserved for the chief."""
    (tmp_path / "ps.py").write_text(PS)
    with contextlib.ExitStack() as held:
        ports = hold_ports(held)
        addresses = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
        server = held.enter_context(launched(tmp_path / "ps", "ps.py", *addresses, cwd=tmp_path))
        server.wait_for("server", lambda: "serves" in server.said())
        server.wait_for("phase", lambda: server.status()["processes"][1]["phase"] == "serve")
        yield server, addresses
        assert server.process.poll() == 75
        assert [entry["delay"] for entry in server.events("restarting")] == [0.0]
        assert "SIGKILL, sender unknown, while it served" in server.said()
        assert not server.events("hang_suspected")
        assert "asked to stop (preempt): " in server.said()


@pytest.mark.parametrize("api", ["supervisor", "monitored"])
def test_row_58_a_returning_chief_keeps_a_living_model_and_restores_one_that_is_incomplete_or_older(
    api: str, tmp_path: Path, cluster: tuple[Launched, tuple[str, str]]
) -> None:
    server, addresses = cluster
    (tmp_path / "chief.py").write_text(CHIEF)
    logdir = tmp_path / "logdir"
    options = ("--drop-in", "--snapshot-secs", "0.2", "chief.py", *addresses, api, str(logdir))
    with launched(logdir, *options, cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered")
        worker = Worker(f"grpc://{addresses[0]}")
        try:
            run.wait_for("a snapshot", lambda: memory_step(run) >= 5)
            run.kill("trainer")
            worker.add(100_000)
            run.wait_event("recovered", 2)
            assert worker.read()[0] > 100_000, "what was trained meanwhile is there"

            run.wait_for("a snapshot of that", lambda: memory_step(run) > 100_000)
            freeze(run.pid("trainer"))
            worker.clear_mark()  # as a chief that dies during a restore leaves it
            step, _ = worker.read()
            worker.add(100_000)
            run.kill("trainer")
            run.wait_event("recovered", 3)
            assert worker.read()[0] < step + 100_000, "the saved state is restored, in all variables"

            trained, _ = worker.read()
            run.wait_for("a snapshot after that", lambda: memory_step(run) > trained)
            freeze(run.pid("trainer"))
            worker.put(3)  # as if another process had initialized it; a step that the trainer had begun may follow
            run.kill("trainer")
            run.wait_event("recovered", 4)
            now, weights = worker.read()
            assert now > 100_000
            assert float(abs(weights - now).max()) < 1_000, "but for the steps that are made just now"
        finally:
            worker.close()

        server.kill("trainer")
        if api == "supervisor":
            run.wait_event("recovered", 5)
            exited = run.events("exited", "trainer")[-1]
            assert (exited["cause"], exited["evidence"][:13]) == ("lost-peer", "ps.0 is gone:")
            assert run.events("recovered")[-1]["source"] in ("memory", "checkpoint")
        else:
            assert run.wait_event("session_recovered")[-1]["source"] in ("memory", "checkpoint")

        server.process.send_signal(signal.SIGTERM)  # for good: leaving a session must not wait for it
        assert server.wait_end() == 75
        if api == "supervisor":
            run.wait_event("exited", 5, "trainer")
        run.wait_for("a wait for the server", lambda: run.status()["processes"][1]["phase"] == "connect")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        assert "is still waiting" in run.said()
    assert [entry["source"] for entry in run.events("recovered")][:4] == ["fresh", "alive", "memory", "memory"]
    lost = [one.lost_steps for one in run.account().incarnations]
    assert lost[0] == 0, "of the first, whose steps the model kept"
    assert re.search("at step [34], but step", run.said())
