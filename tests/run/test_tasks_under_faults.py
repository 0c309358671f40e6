"""Faults of several tasks that come two at a time, and tasks that end by themselves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched

pytestmark = pytest.mark.fault

PROGRAM = """
import json, os, sys, threading
from pathlib import Path
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
role, index, pause = config["task"]["type"], config["task"]["index"], threading.Event()
order = Path("orders", os.environ["PROCSV_TASK"])


def obey():
    if order.exists():
        code = int(order.read_text())
        order.unlink()
        os._exit(code)


if role == "evaluator":
    pause.wait()
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=role, task_index=index)
if role == "ps":
    threading.Thread(target=lambda: [obey() for _ in iter(lambda: pause.wait(0.05), True)], daemon=True).start()
    server.join()
own = f"/job:{role}/task:{index}"
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = [tf.get_variable(f"weights{n}", [1000], initializer=tf.zeros_initializer(), use_resource=True) for n in range(2)]
    train = tf.group(*(tf.assign_add(one, tf.ones([1000])) for one in weights), tf.assign_add(step, 1))
with tf.train.MonitoredTrainingSession(
    server.target,
    is_chief=role == "chief",
    checkpoint_dir=os.environ["PROCSV_LOGDIR"],
    save_checkpoint_secs=600,
    config=tf.ConfigProto(device_filters=["/job:ps", own]),
) as session:
    while not session.should_stop():
        session.run(train)
        pause.wait(0.02)
        obey()
"""
OPTIONS = ("--drop-in", "--snapshot-secs", "0.2")


def run_json(run: Launched) -> dict[str, object]:
    read: dict[str, object] = json.loads((run.logdir / "procsv" / "run.json").read_text())
    return read


def wait_for_steps(run: Launched) -> int:
    """A snapshot of what is trained from now on; its step."""
    now = run.step()
    return run.wait_for(
        "a later snapshot", lambda: step if (step := int(str(run_json(run)["memory_step"]))) > now else 0
    )


def ends(run: Launched, task: str) -> list[str]:
    return [entry["cause"] for entry in run.events("exited", task)]


def test_row_62_two_at_once_one_again_and_those_that_are_frozen_cost_what_they_must(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    tasks = ("--workers", "2", "--ps", "2", "--evaluators", "1", "--fault", "stop ps.0 for 2s at step 40")
    with launched(tmp_path / "run", *tasks, *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        run.kill("evaluator.0", signal.SIGSTOP)  # for the rest of the run
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("ready", 1, task)
        (frozen,) = run.wait_event("fault", 1, "ps.0")
        run.wait_for("steps behind the freeze", lambda: run.step() > frozen["step"] + 100)
        assert not run.events("exited"), "all have waited, and nobody was started again"

        for task in ("worker.0", "worker.1"):
            run.kill(task)
        for task in ("worker.0", "worker.1"):
            run.wait_event("ready", 2, task)
        assert ends(run, "chief") == ends(run, "ps.0") == []

        trained = wait_for_steps(run)
        for task in ("ps.0", "ps.1"):
            run.kill(task)
        (recovered,) = run.wait_event("session_recovered", 1, "chief")
        assert recovered["source"] == "memory"
        assert recovered["step"] >= trained
        wait_for_steps(run)

        run.kill("ps.1")
        run.wait_event("spawned", 3, "ps.1")
        run.kill("ps.1")
        run.wait_event("spawned", 4, "ps.1")
        run.wait_event("session_recovered", 2, "chief")
        wait_for_steps(run)
        assert ends(run, "chief") == [], "its sessions are made anew"
        assert {task["task"]: task["restarts"] for task in run.status()["tasks"]} == {
            "chief": 0,
            "worker.0": 1,
            "worker.1": 1,
            "ps.0": 1,
            "ps.1": 3,
            "evaluator.0": 0,
        }

        rates = {task["task"]: task["steps_per_s"] for task in run.status()["tasks"]}
        assert {task for task, rate in rates.items() if rate} == {"chief", "worker.0", "worker.1"}

        run.kill("watchdog", signal.SIGTERM)
        run.wait_event("preempt_notice")
        run.kill("watchdog", signal.SIGTERM)  # the grace is no shorter for it
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"] >= recovered["step"]
        assert not run.events("hang_detected")
        assert not run.events("gave_up")


def test_row_63_a_killed_watchdog_and_tasks_that_end_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    orders = tmp_path / "orders"
    orders.mkdir()
    tasks = ("--workers", "2", "--ps", "1")
    with launched(tmp_path / "run", *tasks, *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("ready", 1, task)
        trained = wait_for_steps(run)
        run.kill("watchdog")
        assert run.wait_end() == -signal.SIGKILL

    with launched(tmp_path / "run", *tasks, *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("ready", 2, task)
        assert run.events("recovered", "chief")[1]["step"] >= trained

        (orders / "worker.1").write_text("75")
        run.wait_event("ready", 3, "worker.1")
        (again,) = run.events("restarting", "worker.1")
        assert again["delay"] == 0.0

        (orders / "ps.0").write_text("0")
        run.wait_event("session_recovered", 1, "chief")
        assert ends(run, "ps.0")[-1] == "exit-code"

        (orders / "worker.0").write_text("0")
        run.wait_for("its end", lambda: ends(run, "worker.0")[-1:] == ["completed"])
        wait_for_steps(run)
        assert {task["task"]: task["state"] for task in run.status()["tasks"]}["worker.0"] == "done"

        (orders / "worker.1").write_text("78")
        assert run.wait_end() == 70
        (gave_up,) = run.events("gave_up")
        assert gave_up["role"] == "worker.1"
        (manifest,) = run.logdir.glob(f"*-{run.step()}.manifest.json")
        assert json.loads(manifest.read_text())["reason"] == "final", "what the others had trained is saved"
        assert not any(orders.iterdir())
