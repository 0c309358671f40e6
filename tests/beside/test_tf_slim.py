"""tf_slim's `learning.train` with replicas under one launch continues after the kill of each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import launched, procsv
from tests.support.replicas import JOIN, SERVER, TASK, text_of, wait_for_memory

pytestmark = pytest.mark.long

PROGRAM = (
    TASK
    + "import tf_slim as slim\n"
    + SERVER
    + JOIN
    + """
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    x = tf.random.normal([32, 8], seed=1)
    out = slim.fully_connected(slim.fully_connected(x, 16), 1, activation_fn=None)
    loss = tf.losses.mean_squared_error(tf.reduce_sum(x, 1, keepdims=True), out)
    train = slim.learning.create_train_op(loss, tf.train.AdamOptimizer(0.01), global_step=step)

def make_step(session, *args):
    pause.wait(0.02)
    return slim.learning.train_step(session, *args)

slim.learning.train(
    train,
    os.environ["PROCSV_LOGDIR"],
    master=server.target,
    is_chief=is_chief,
    number_of_steps=100_000,
    save_interval_secs=600,
    train_step_fn=make_step,
    session_config=tf.ConfigProto(device_filters=["/job:ps", own]),
)
print("slim has ended", flush=True)
"""
)


def test_slims_training_loop_continues_after_the_death_of_each_task_and_ends_at_a_stop(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--workers", "1", "--ps", "1", "--drop-in", "--snapshot-secs", "0.5", str(tmp_path / "train.py"))
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        run.wait_event("recovered", 1, "worker.0")
        run.kill("worker.0")
        run.wait_event("recovered", 2, "worker.0")
        assert run.events("recovered", "worker.0")[1]["source"] == "chief"
        at = wait_for_memory(run, run.step())
        run.kill("chief")
        run.wait_event("recovered", 2, "chief")
        alive = run.events("recovered", "chief")[1]
        assert alive["source"] == "alive"
        assert alive["step"] >= at
        at = wait_for_memory(run, alive["step"])
        run.kill("ps.0")
        run.wait_event("recovered", 3, "chief")
        restored = run.events("recovered", "chief")[2]
        assert restored["source"] == "memory"
        assert restored["step"] >= at
        wait_for_memory(run, restored["step"])
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["step"] == stopped["durable_step"]
        assert {e["cause"] for e in run.events("exited") if e["signal"] != "SIGKILL"} <= {
            "completed",
            "stopped",
            "lost-peer",
        }
        assert "slim has ended" in text_of(run, "chief")
