"""Under one launch the chief, workers, a parameter server and an evaluator are each killed while
the others train on.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import run_json, text_of, wait_for_steps

pytestmark = pytest.mark.fault

PROGRAM = """
import json, os, sys, threading
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
print("I am", os.environ["PROCSV_TASK"], *sys.argv[1:], flush=True)
if role == "evaluator":
    threading.Event().wait()
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=role, task_index=index)
if role == "ps":
    server.join()
own = f"/job:{role}/task:{index}"
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.zeros_initializer(), use_resource=True)
    train = tf.group(tf.assign_add(weights, tf.ones([1000])), tf.assign_add(step, 1))
with tf.train.MonitoredTrainingSession(
    server.target,
    is_chief=role == "chief",
    checkpoint_dir=os.environ["PROCSV_LOGDIR"],
    save_checkpoint_secs=600,
    config=tf.ConfigProto(device_filters=["/job:ps", own]),
) as session:
    while not session.should_stop():
        session.run(train)
        threading.Event().wait(0.02)
"""
WORDS = ("{task_type}", "{task_index}", "{ps_hosts}", "{worker_hosts}", "{chief_hosts}")
TRAINING = ("chief", "worker.0", "worker.1")


# The example, which waits after a thousand steps for a file `go`.
EXAMPLE = """
import os, sys, threading
from procsv.examples import replicas


class Held(replicas.Progress):
    def show(self, step, text):
        super().show(step, text)
        while step >= 1000 and not os.path.exists("go"):
            threading.Event().wait(0.01)


replicas.Progress = Held
sys.exit(replicas.main())
"""


def told(run: Launched, task: str) -> list[str]:
    """Return what each attempt of `task` has printed about itself."""
    return re.findall(r"^I am .*", text_of(run, task), re.MULTILINE)


@pytest.mark.long
def test_row_59_each_task_that_is_killed_or_frozen_comes_back_at_its_address(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    tasks = ("--workers", "2", "--ps", "1", "--evaluators", "1")
    with launched(
        tmp_path / "run", *tasks, "--drop-in", "--snapshot-secs", "0.2", "train.py", *WORDS, cwd=tmp_path, standby=None
    ) as run:
        for task in TRAINING:
            run.wait_event("recovered", 1, task)
        wait_for_steps(run)

        for task in ("worker.1", "chief"):
            before = run_json(run)["step"]
            run.kill(task)
            run.wait_event("recovered", 2, task)
            (again,) = run.events("restarting", task)
            assert (again["delay"], again["lost_steps"]) == (0.0, 0)
            assert run.events("recovered", task)[1]["step"] >= before
        assert [entry["source"] for entry in run.events("recovered", "worker.1")] == ["chief", "chief"]
        assert [entry["source"] for entry in run.events("recovered", "chief")] == ["fresh", "alive"]

        run.kill("evaluator.0")
        run.wait_event("spawned", 2, "evaluator.0")
        wait_for_steps(run)
        run.kill("ps.0")
        run.wait_event("session_recovered", 1, "chief")
        assert run.events("session_recovered", "chief")[0]["source"] == "memory"
        wait_for_steps(run)

        run.kill("ps.0", signal.SIGSTOP)  # no task that waits for it gets an error
        run.wait_event("session_recovered", 2, "chief")
        assert [entry["role"] for entry in run.events("hang_detected")] == ["ps.0"]
        wait_for_steps(run)
        assert {row["role"]: row["state"] for row in run.status()["processes"]}["ps.0"] == "serving"

        answer = procsv("stop", str(run.logdir))
        assert answer.returncode == 0, answer.stderr
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"]
        (manifest,) = run.logdir.glob(f"*-{stopped['step']}.manifest.json")
        assert json.loads(manifest.read_text())["mixed"] is True, "workers train while the chief captures"
        ended = [entry["role"] for entry in run.events("exited") if entry["cause"] == "stopped"]
        order = [task for task in ended if task in (*TRAINING, "ps.0")]
        assert order[-1] == "ps.0", "it ends last; a worker that takes more than its head start, after the chief"
        assert not run.events("gave_up")
        for task in (*TRAINING, "ps.0"):
            assert len(set(told(run, task))) == 1, "its address is the same each time"
        assert "I am chief" in procsv("logs", str(run.logdir)).stdout
        account = json.loads(procsv("report", str(run.logdir), "--json").stdout)
        assert account["seconds"]["kept"] > 0 < account["goodput"]
        tasks = account["tasks"]
        assert [len(tasks[task]["incarnations"]) for task in ("chief", "worker.1", "ps.0")] == [2, 2, 3]
        for told_of in tasks.values():
            assert sum(told_of["seconds"].values()) == pytest.approx(account["wall_seconds"], abs=0.01)
        hosts = told(run, "worker.1")[0].split()
        assert hosts[:5] == ["I", "am", "worker.1", "worker", "1"]
        assert [len(words.split(",")) for words in hosts[5:]] == [1, 2, 1]


@pytest.mark.long
def test_row_59_the_several_tasks_example_completes_though_its_chief_is_killed_even_at_its_last_step(
    tmp_path: Path,
) -> None:
    tasks = ("--workers", "1", "--ps", "1", "--evaluators", "1")
    (tmp_path / "example.py").write_text(EXAMPLE)
    options = ("example.py", "--steps", "1500", "--step-ms", "5", "--save-model-secs", "1")
    dies = "trainer.capture@3=kill"  # no other task has a third start
    with launched(tmp_path / "run", *tasks, *options, cwd=tmp_path, standby=None, PROCSV_FAILPOINTS=dies) as run:
        run.wait_event("recovered", 1, "chief")
        run.wait_for("an evaluation", lambda: "test accuracy" in text_of(run, "evaluator.0"))
        run.wait_for("a snapshot of what was trained", lambda: run.status()["memory_step"] > 0)
        run.kill("chief")
        run.wait_event("recovered", 2, "chief")
        assert run.events("recovered", "chief")[1]["source"] == "alive"

        run.kill("chief", signal.SIGSTOP)  # so the worker trains the last step, and no capture has it
        (tmp_path / "go").touch()
        run.wait_event("exited", 1, "worker.0")
        run.kill("chief")
        run.assert_completed()
        assert [entry["signal"] for entry in run.events("exited", "chief")] == ["SIGKILL"] * 3 + [None]
        assert len(run.events("recovered", "chief")) == 2, "no step is made twice"
        (completed,) = run.events("run_completed")
        assert completed["step"] >= 1500
        assert run.events("checkpoint_durable")[-1]["step"] == completed["step"]
    assert {entry["cause"] for entry in run.events("exited", "ps.0")} == {"stopped"}
    assert len(run.events("spawned", "worker.0")) == 1
