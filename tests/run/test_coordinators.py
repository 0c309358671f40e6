"""ParameterServerStrategy, SyncReplicasOptimizer and a Supervisor's replicas reach their end though
their tasks are killed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import launched
from tests.support.replicas import JOIN, SERVER, TASK, monitored, text_of

pytestmark = [pytest.mark.fault, pytest.mark.long]

COORDINATOR = """
import json, os, threading
import tensorflow as tf
import procsv

role, own = json.loads(os.environ["TF_CONFIG"])["task"]["type"], os.environ["PROCSV_TASK"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if role in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, protocol="grpc").join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights, step = tf.Variable(tf.zeros([1000])), tf.Variable(0, dtype=tf.int64)


@tf.function(autograph=False)  # autograph leaves files behind where a process is killed
def train():
    def one():
        weights.assign_add(tf.ones([1000]))
        step.assign_add(1)

    strategy.run(one)


checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(checkpoint, os.environ["PROCSV_LOGDIR"], 3)
manager.restore_or_initialize()
print("began with", int(step), flush=True)
rounds = 0
while int(step) < 400 or not os.path.exists("open"):  # not over before the test has killed what it kills
    for _ in range(4):
        coordinator.schedule(train)
    coordinator.join()
    rounds += 1
    if rounds % 5 == 0:
        manager.save(int(step))
    threading.Event().wait(0.05)
apart = abs(float(weights[0]) - int(step))
assert apart <= 1, apart  # a worker was killed once, perhaps between the two: TensorFlow has another one begin that step anew
print("all steps", int(step), flush=True)
"""

SYNC_MODEL = (
    TASK
    + SERVER
    + JOIN
    + """
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.ones_initializer(), use_resource=False)
    optimizer = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(1e-4), replicas_to_aggregate=2, total_num_replicas=2
    )
    train = optimizer.minimize(tf.reduce_sum(tf.square(weights)), global_step=step)
"""
)
SYNC = SYNC_MODEL + monitored(hooks="[optimizer.make_session_run_hook(is_chief)]")
SYNC_LOOP = (
    SYNC_MODEL
    + """
tokens, queue_runner = optimizer.get_init_tokens_op(), optimizer.get_chief_queue_runner()
sv = tf.train.Supervisor(
    is_chief=is_chief,
    logdir=os.environ["PROCSV_LOGDIR"],
    local_init_op=optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
    ready_for_local_init_op=optimizer.ready_for_local_init_op,
    recovery_wait_secs=1,
    global_step=step,
)
session = sv.prepare_or_wait_for_session(server.target, config=tf.ConfigProto(device_filters=["/job:ps", own]))
if is_chief:
    session.run(tokens)
    sv.start_queue_runners(session, [queue_runner])
while True:
    session.run(train)
    pause.wait(0.02)
"""
)

# Made like slim's learning.train: the chief starts a Supervisor's standard services, and its loop
# ends by its own condition and saves once more. It starts over when a session is aborted.
SLIM = (
    TASK
    + SERVER
    + JOIN
    + """
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.zeros_initializer(), use_resource=True)
    with tf.control_dependencies([tf.assign_add(weights, tf.ones([1000]))]):
        train = tf.assign_add(step, 1)
saver = tf.train.Saver()
sv = tf.train.Supervisor(
    is_chief=is_chief, logdir=os.environ["PROCSV_LOGDIR"], summary_op=None, saver=saver, global_step=step, save_model_secs=600
)
should_retry = True
while should_retry:
    should_retry = False
    try:
        session_config = tf.ConfigProto(device_filters=["/job:ps", own])
        with sv.managed_session(server.target, start_standard_services=False, config=session_config) as session:
            if is_chief:
                sv.start_standard_services(session)
            threads = sv.start_queue_runners(session)
            while not sv.should_stop():
                if session.run(train) >= 600 and os.path.exists("open"):
                    sv.stop(threads, close_summary_writer=True)
                pause.wait(0.02)
            if is_chief:
                sv.saver.save(session, sv.save_path, global_step=sv.global_step)
    except tf.errors.AbortedError:
        should_retry = True
"""
)


def test_a_coordinator_that_loses_a_worker_and_a_server_completes(tmp_path: Path) -> None:
    """Workers and servers are servers that join. The chief is the coordinator and saves its state
    by its manager.
    """
    (tmp_path / "train.py").write_text(COORDINATOR)
    options = ("--workers", "2", "--ps", "1", "--drop-in")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path, standby=None) as run:
        run.wait_event("checkpoint_durable", 2)
        run.kill("worker.1")
        run.wait_event("spawned", 2, "worker.1")
        run.wait_event("checkpoint_durable", 4)
        assert not run.events("exited", "chief"), "the other worker trains on"

        run.kill("ps.0")
        run.wait_event("spawned", 2, "ps.0")
        run.wait_event("spawned", 2, "chief")
        (lost,) = run.events("exited", "chief")
        assert lost["cause"] == "lost-peer"
        (tmp_path / "open").touch()
        run.assert_completed()
        assert not run.events("gave_up")
        begun = [int(step) for step in re.findall(r"began with (\d+)", text_of(run, "chief"))]
        assert begun[0] == 0 < begun[-1]
        assert "all steps" in text_of(run, "chief")


def test_replicas_as_slim_makes_them_complete_though_each_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLIM)
    options = ("--workers", "2", "--ps", "1", "--drop-in", "--snapshot-secs", "0.2")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("recovered", 1, task)
        for task in ("worker.1", "chief"):
            run.kill(task)
            run.wait_event("recovered", 2, task)
        (tmp_path / "open").touch()  # however long the starts take, it is not over before
        assert [entry["source"] for entry in run.events("recovered", "chief")] == ["fresh", "alive"]
        run.assert_completed()
        assert not run.events("gave_up")
        assert run.events("run_completed")[0]["step"] >= 600


def test_sync_replicas_continue_after_the_deaths_of_a_worker_and_the_chief(tmp_path: Path) -> None:
    """Each step needs both replicas: waiting for the other's gradients is no hang, and nothing is lost."""
    (tmp_path / "train.py").write_text(SYNC)
    options = ("--workers", "1", "--ps", "1", "--drop-in", "--snapshot-secs", "0.2")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        for count, task in enumerate(("worker.0", "chief", "worker.0"), 2):
            before = run.step()
            run.wait_for("steps", lambda at=before: run.step() > at + 20)  # type: ignore[misc]
            before = run.step()
            run.kill(task)
            run.wait_event("spawned", 2 if count < 4 else 3, task)
            run.wait_for("steps of both", lambda at=before: run.step() > at + 20)  # type: ignore[misc]
        assert [entry["source"] for entry in run.events("recovered", "chief")] == ["fresh", "alive"]
        run.kill("watchdog", 15)
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"]
        assert {entry["cause"] for entry in run.events("exited")} <= {"killed", "stopped", "completed"}


def test_closing_the_queue_that_steps_wait_at_is_no_crash_when_the_run_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SYNC_LOOP)
    options = ("--workers", "1", "--ps", "1", "--drop-in")
    with launched(tmp_path / "run", *options, "train.py", cwd=tmp_path) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        run.wait_step(20)
        run.kill("watchdog", 15)
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"] >= 20
        assert {entry["cause"] for entry in run.events("exited")} <= {"stopped", "completed"}
        assert "Traceback" not in text_of(run, "chief") + text_of(run, "worker.0")
