"""After SIGTERM to all processes, the last step of all tasks is saved, from servers and from replicas in step."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tests.run import test_gang
from tests.run.test_signals import check_end, ends, processes, send
from tests.support.launched import launched
from tests.support.replicas import IN_STEP, last_trained

pytestmark = [pytest.mark.fault, pytest.mark.long]

COORDINATED = """
import json, os, threading
import tensorflow as tf
import procsv

role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if role in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, protocol="grpc").join()
coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))
with coordinator.strategy.scope():
    weights, step = tf.Variable(tf.zeros([1000])), tf.Variable(0, dtype=tf.int64)


@tf.function(autograph=False)  # autograph leaves files behind where a process is killed
def train():
    weights.assign_add(tf.ones([1000]))
    step.assign_add(1)


manager = procsv.CheckpointManager(tf.train.Checkpoint(weights=weights, step=step), None, step_counter=step)
manager.restore_or_initialize()
while not manager.should_stop():
    coordinator.schedule(train)
    coordinator.join()
    manager.step()
    print("trained", int(step), flush=True)
    threading.Event().wait(0.05)
manager.close()
"""


@pytest.mark.parametrize(
    ("first", "program"),
    [("launch", IN_STEP), ("chief", IN_STEP), ("worker", COORDINATED)],
    ids=["launch", "chief", "coordinated"],
)
def test_variables_on_a_server_are_saved_up_to_the_last_step_of_all_tasks(
    tmp_path: Path, first: str, program: str
) -> None:
    """Each process in turn gets the signal first, and the others right after, twice."""
    (tmp_path / "train.py").write_text(program)
    options = ("--workers", "1", "--ps", "1", "--drop-in", "--snapshot-secs", "600", "--grace", "60s")
    role = {"launch": "watchdog", "worker": "worker.0"}.get(first, first)
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path) as run:
        run.wait_event("recovered", 1, "chief")
        run.wait_step(run.step() + 10)
        pids = processes(run)
        send([pids.pop(role), *pids.values()], 2)
        saved = check_end(run)
        assert saved == last_trained(run.logdir)
        order = ends(run)
        assert order[-1] == "ps.0"
        assert order[1 if program == IN_STEP else 0] == "chief"
        reader = tf.train.load_checkpoint(str(run.logdir))
        (name,) = [one for one in reader.get_variable_to_shape_map() if one.startswith("weights")]
        assert set(reader.get_tensor(name)) == {float(saved)}


def test_replicas_in_step_end_with_the_last_step_of_their_chief(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(test_gang.PROGRAM)
    options = ("--workers", "2", "--no-chief", "--snapshot-secs", "600", "--grace", "60s")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path) as run:
        run.wait_event("gang_formed")
        run.wait_step(30)
        pids = processes(run)
        send([pids.pop("worker.1"), *pids.values()], 2)
        check_end(run)
        assert ends(run) == ["worker.0", "worker.1"]
