"""Faults of several tasks: two at a time, in a task that waits for another, notices, and tasks that
end by themselves.

Tests that need a server's variables use TensorFlow; in the others the chief trains NumPy arrays and
the rest only report training.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import (
    JOIN,
    SERVER,
    STEP,
    TASK,
    memory_step,
    monitored,
    text_of,
    wait_for_memory,
    wait_for_steps,
)

pytestmark = pytest.mark.fault

PROGRAM = (
    TASK
    + """
from pathlib import Path
from procsv.base.system import failpoints

order = Path("orders", os.environ["PROCSV_TASK"])


def obey():
    if not order.exists() or not (word := order.read_text()):
        return
    order.unlink()
    if word == "never copy":
        failpoints.arm("server.copy=hang")
        print("never from here on", flush=True)
    else:
        os._exit(int(word))


if role == "evaluator":
    pause.wait()
while is_chief and Path("closed").exists():
    pause.wait(0.05)
"""
    + SERVER
    + """
if role == "ps":
    threading.Thread(target=lambda: [obey() for _ in iter(lambda: pause.wait(0.05), True)], daemon=True).start()
"""
    + JOIN
    + """
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = [tf.get_variable(f"weights{n}", [1000], initializer=tf.zeros_initializer(), use_resource=True) for n in range(2)]
    train = tf.group(*(tf.assign_add(one, tf.ones([1000])) for one in weights), tf.assign_add(step, 1))
print("asks for a session", flush=True)
"""
    + monitored(STEP + "obey()")
)
OPTIONS = ("--drop-in", "--snapshot-secs", "0.2")


def ends(run: Launched, task: str) -> list[str]:
    return [entry["cause"] for entry in run.events("exited", task)]


def states(run: Launched) -> dict[str, str]:
    return {task["task"]: task["state"] for task in run.status()["tasks"]}


@pytest.mark.long
def test_row_62_two_faults_at_once_a_second_fault_and_frozen_tasks_cost_only_what_they_must(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    tasks = ("--workers", "2", "--ps", "2", "--evaluators", "1", "--fault", "stop ps.0 for 2s at step 40")
    with launched(tmp_path / "run", *tasks, *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        run.kill("evaluator.0", signal.SIGSTOP)  # for the rest of the run
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("recovered", 1, task)
        (frozen,) = run.wait_event("fault", 1, "ps.0")
        run.wait_for("steps behind the freeze", lambda: run.step() > frozen["step"] + 100)
        assert not run.events("exited"), "all have waited, and nobody was started again"

        for task in ("worker.0", "worker.1"):
            run.kill(task)
        for task in ("worker.0", "worker.1"):
            run.wait_event("recovered", 2, task)
        assert ends(run, "chief") == ends(run, "ps.0") == []

        trained = wait_for_steps(run)
        for task in ("ps.0", "ps.1"):
            run.kill(task)
        recovered, *_ = run.wait_event(
            "session_recovered", 1, "chief"
        )  # once more, if one comes back while the other dies
        assert recovered["source"] == "memory"
        assert recovered["step"] >= trained
        wait_for_steps(run)

        sessions = len(run.events("session_recovered", "chief"))
        run.kill("ps.1")
        run.wait_event("spawned", 3, "ps.1")
        run.kill("ps.1")
        run.wait_event("spawned", 4, "ps.1")
        run.wait_event("session_recovered", sessions + 1, "chief")
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

        def stepping() -> set[str]:
            return {task["task"] for task in run.status()["tasks"] if task["steps_per_s"]}

        run.wait_for("the pace of all that train", lambda: stepping() == {"chief", "worker.0", "worker.1"})

        run.kill("watchdog", signal.SIGTERM)
        run.wait_event("preempt_notice")
        run.kill("watchdog", signal.SIGTERM)  # this does not shorten the grace period
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"] >= recovered["step"]
        assert not run.events("hang_detected")
        assert not run.events("gave_up")


ENDS_BY_ORDER = """
import os, threading, time
from pathlib import Path
from tests.support.numpy_training import train_replicas

order = Path("orders", os.environ["PROCSV_TASK"])


def obey():
    while not order.exists() or not (word := order.read_text()):
        time.sleep(0.02)
    order.unlink()
    os._exit(int(word))


threading.Thread(target=obey, daemon=True).start()
train_replicas()
"""


def test_row_63_a_run_survives_a_killed_watchdog_and_tasks_that_end_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS_BY_ORDER)
    orders = tmp_path / "orders"
    orders.mkdir()
    command = ("--workers", "2", "--ps", "1", "--snapshot-secs", "0.2", "train.py")
    with launched(tmp_path / "run", *command, cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("recovered", 1, task)
        trained = wait_for_steps(run)
        run.kill("watchdog")
        assert run.wait_end() == -signal.SIGKILL

    with launched(tmp_path / "run", *command, cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("recovered", 2, task)
        assert run.events("recovered", "chief")[1]["step"] >= trained

        (orders / "worker.1").write_text("75")
        run.wait_event("recovered", 3, "worker.1")
        (again,) = run.events("restarting", "worker.1")
        assert again["delay"] == 0.0

        # A server that ends with 0 before it serves has done its work.
        run.wait_for("the server", lambda: states(run)["ps.0"] == "serving")
        (orders / "ps.0").write_text("0")
        run.wait_event("spawned", 3, "ps.0")
        assert ends(run, "ps.0")[-1] == "exit-code"

        (orders / "worker.0").write_text("0")
        run.wait_for("its end", lambda: ends(run, "worker.0")[-1:] == ["completed"])
        wait_for_steps(run)
        assert states(run)["worker.0"] == "done"

        (orders / "worker.1").write_text("78")
        assert run.wait_end() == 70
        (gave_up,) = run.events("gave_up")
        assert gave_up["role"] == "worker.1"
        (manifest,) = run.logdir.glob(f"*-{run.step()}.manifest.json")
        assert json.loads(manifest.read_text())["reason"] == "final", "what the others had trained is saved"
        assert not any(orders.iterdir())


FAILS_ALWAYS = """
import os
from procsv.training.runtime.context import current
from tests.support.numpy_training import begin_steps, train_replicas

if os.environ["PROCSV_TASK"] == "worker.2":
    begin_steps(current())
    raise ValueError("this machine is no good")
train_replicas()
"""
BAD, GOOD = "worker.2", ("chief", "worker.0", "worker.1")
FEW = ("--workers", "3", "--ps", "1", "--max-failures", "2", "--backoff", "0.1..0.2", "--snapshot-secs", "0.2")


def test_row_63_a_worker_that_always_fails_ends_the_run_and_with_min_workers_the_others_train_to_the_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(FAILS_ALWAYS)
    options = (*FEW, "train.py")
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None) as run:
        assert run.wait_end() == 70
        (gave_up,) = run.events("gave_up")
        assert gave_up["role"] == BAD
        assert not run.events("task_given_up")
        starts, trained = len(run.events("spawned", BAD)), {one: len(run.events("recovered", one)) for one in GOOD}

    with launched(tmp_path / "run", "--min-workers", "2", *options, cwd=tmp_path, standby=None) as run:
        (given_up,) = run.wait_event("task_given_up", 1, BAD)
        assert given_up["workers"] == 2
        assert len(run.events("spawned", BAD)) > starts + 1, "it has the budget of a new launch"
        for task in GOOD:
            run.wait_event("recovered", trained[task] + 1, task)
        wait_for_steps(run)
        assert states(run)[BAD] == "failed"
        run.kill("worker.1")
        run.wait_event("recovered", trained["worker.1"] + 2, "worker.1")

        (run.logdir / "end").touch()
        assert run.wait_end() == 0
        (completed,) = run.events("run_completed")
        assert len(run.events("gave_up")) == 1, "of the launch before"
        said = run.said()
        assert "gave up worker.2: " in said
        assert "worker.2 was given up: " in said.rpartition(" without it, with 2 workers left")[2]

    report = procsv("report", str(run.logdir)).stdout
    assert "without worker.2, " in " ".join(report.split())
    account = json.loads(procsv("report", str(run.logdir), "--json").stdout)
    assert account["outcome"] == "completed"
    away_s = completed["time"] - given_up["time"]
    assert account["tasks"][BAD]["seconds"]["down"] > away_s - 0.01, "what it did not train is lost"


def wait_until_it_waits(run: Launched, task: str, attempt: int) -> None:
    """Wait until that attempt asks for a session and the run knows that it waits for the chief."""
    run.wait_for("its words", lambda: text_of(run, task).count("asks for a session") == attempt)
    run.wait_for(
        "a wait", lambda: "chief" in [one["waits_for"] for one in run.status()["tasks"] if one["task"] == task]
    )


def notice(run: Launched, task: str, starts: int) -> None:
    """Send SIGTERM to that task alone, which restarts at once and at no charge."""
    run.kill(task, signal.SIGTERM)
    run.wait_event("spawned", starts, task)
    assert run.events("exited", task)[-1]["code"] == 75
    assert run.events("restarting", task)[-1]["delay"] == 0.0


@pytest.mark.long
def test_row_64_a_run_handles_a_waiting_task_a_frozen_task_and_notices_to_one_or_all_tasks(tmp_path: Path) -> None:
    """A worker is killed before there is a model and frozen for good; then single machines, and
    all, are preempted.
    """
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "closed").touch()
    (tmp_path / "orders").mkdir()
    tasks = ("--workers", "1", "--ps", "1", "--hang-timeout", "15s", "--grace", "20s")
    with launched(tmp_path / "run", *tasks, *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        wait_until_it_waits(run, "worker.0", 1)
        run.kill("worker.0")
        run.wait_event("spawned", 2, "worker.0")
        wait_until_it_waits(run, "worker.0", 2)
        (tmp_path / "closed").unlink()
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        assert ends(run, "chief") == ends(run, "ps.0") == []
        assert run.events("recovered", "worker.0")[0]["source"] == "chief"

        frozen = run.kill("worker.0", signal.SIGSTOP)
        trained = wait_for_memory(run, wait_for_steps(run))  # the first one may have been on its way
        run.wait_event("spawned", 3, "worker.0")
        assert not psutil.pid_exists(frozen), "it can do nothing any more, whoever thaws it"
        run.wait_event("recovered", 2, "worker.0")
        with pytest.raises(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
        assert run.events("recovered", "worker.0")[1]["step"] >= trained, "the chief has trained on"
        assert ends(run, "worker.0") == ["killed", "hang"]
        assert ends(run, "chief") == ends(run, "ps.0") == []

        notice(run, "worker.0", 4)
        run.wait_event("recovered", 3, "worker.0")
        trained = run.step()
        notice(run, "chief", 2)
        run.wait_event("recovered", 2, "chief")
        saved = [entry["step"] for entry in run.events("checkpoint_durable") if entry["reason"] == "preempt"]
        assert max(saved) >= trained
        assert run.events("recovered", "chief")[1]["source"] == "alive"
        run.kill("ps.0", signal.SIGTERM)  # it keeps serving while the chief saves its variables
        run.wait_for("the server's word", lambda: "until its watchdog" in text_of(run, "ps.0"))
        trained = wait_for_steps(run)
        assert not run.events("exited", "ps.0")
        (tmp_path / "orders" / "ps.0").write_text("never copy")  # no save by the chief ends within any grace period
        run.wait_for("the server's answer", lambda: "never from here on" in text_of(run, "ps.0"))
        run.wait_step(memory_step(run) + 100)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert trained <= stopped["durable_step"] < stopped["step"], "the newest whole snapshot is saved"
        newest = tf.train.load_checkpoint(str(run.logdir))
        assert newest.get_tensor("global_step") == stopped["durable_step"]
        assert [entry["role"] for entry in run.events("exited") if entry["role"] in ("chief", "ps.0")][-1] == "ps.0"
        assert not run.events("gave_up")
