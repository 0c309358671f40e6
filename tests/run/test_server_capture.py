"""The servers of a launch capture their own variables, with the same result as when the chief fetches them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import (
    HELD_COPY,
    JOIN,
    ROOMY_SERVER,
    TASK,
    memory_step,
    monitored,
    newest_slot,
    text_of,
    wait_for_memory,
)

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = (
    TASK
    + ROOMY_SERVER
    + """
if role == "ps":
    def refuse(order):
        raise ValueError("not today")
    from tensorflow.python.ops import script_ops
    if "unable" in sys.argv:
        script_ops._py_funcs._funcs.clear()
    if "forgets" in sys.argv:
        script_ops._py_funcs._funcs["procsv.copy"] = refuse
"""
    + HELD_COPY
    + JOIN
    + """
ones = tf.ones_initializer()
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    kept = [tf.get_variable("dense", [300_000], initializer=ones, use_resource=True)]
    kept += [tf.get_variable(f"small{i}", [7], tf.float64, initializer=ones, use_resource=True) for i in range(20)]
    embedding = tf.get_variable("embedding", [1000, 8], initializer=ones, use_resource=True)
    kept.append(tf.get_variable("in_place", [300_000], initializer=ones, use_resource=False))
    names = tf.get_variable("names", initializer=tf.constant(["a", "b"]), use_resource=True)
with tf.device("/job:ps/task:1"):
    kept += [tf.get_variable("half", [9_000_000], tf.bfloat16, initializer=ones, use_resource=True)]
    kept += [tf.get_variable("count", [], tf.int64, initializer=ones, use_resource=True)]
with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_device="/job:ps", worker_device="/job:chief/task:0")):
    kept += list(tf.get_variable("parts", [50, 3], initializer=ones, partitioner=tf.fixed_size_partitioner(4)))
with tf.device("/job:chief/task:0"):
    kept.append(tf.get_variable("here", [1000], initializer=ones, use_resource=True))
rows = tf.IndexedSlices(tf.ones([1000, 8]), tf.range(1000))
updates = [tf.assign_add(v, tf.fill(v.shape, tf.cast((step + 1) % 16 - step % 16, v.dtype.base_dtype))) for v in kept]
updates.append(embedding.scatter_add(rows))
with tf.control_dependencies(updates):
    train = tf.assign_add(step, 1, use_locking=True)
"""
    + monitored("session.run(train)\npause.wait(0.05)", hooks="[tf.train.StopAtStepHook(last_step=100_000)]")
)


def expected(step: int) -> dict[str, float]:
    """Return the value of each element of a variable after `step` steps."""
    cyclic = float(1 + step % 16)
    return {
        **dict.fromkeys(("dense", "in_place", "half", "count", "parts", "here"), cyclic),
        **{f"small{i}": cyclic for i in range(20)},
        "embedding": 1.0 + step,
        "global_step": step,
    }


def check(run: Launched, step: int) -> None:
    """Check that the newest checkpoint is of `step` with every element as it was then."""
    path = tf.train.latest_checkpoint(str(run.logdir))
    assert path.endswith(f"-{step}")
    reader = tf.train.load_checkpoint(path)
    for name, value in expected(step).items():
        found = np.asarray(reader.get_tensor(name)).astype(np.float64)
        assert found.min() == found.max() == value, name
    assert reader.get_tensor("names").tolist() == [b"a", b"b"]
    assert json.loads(Path(f"{path}.manifest.json").read_text())["mixed"] is False


def is_back(run: Launched) -> bool:
    """Return whether the chief has continued since a server's last end."""
    news = [
        e for e in run.journal() if e["event"] == "session_recovered" or (e["event"], e["role"][:2]) == ("exited", "ps")
    ]
    return bool(news[-1]["event"] == "session_recovered")


def test_row_61_servers_capture_variables_of_every_kind_and_restore_them_after_dying_during_a_capture(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--ps", "2", "--drop-in", "--snapshot-secs", "0.2", "train.py")
    dies = "server.copy@1=12*off->kill"  # each snapshot takes two pieces
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None, PROCSV_FAILPOINTS=dies) as run:
        run.wait_event("recovered", 1, "chief")
        for server in ("ps.0", "ps.1"):  # the second may come to its last copy only after the first is back
            run.wait_event("exited", 1, server)
        run.wait_for("a session with the new servers", lambda: is_back(run))
        wait_for_memory(run, memory_step(run))
        assert {e["role"] for e in run.events("exited") if e["signal"] == "SIGKILL"} == {"ps.0", "ps.1"}
        recovered = run.events("session_recovered", "chief")
        assert {each["source"] for each in recovered} == {"memory"}
        assert all(each["step"] > 0 for each in recovered)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert not run.events("captured_by_chief")
        check(run, stopped["durable_step"])


def test_row_61_a_chief_that_dies_during_its_servers_copy_leaves_nothing_torn_and_the_next_one_captures(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--ps", "2", "--drop-in", "--snapshot-secs", "0.2", "train.py", "waits")
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        wait_for_memory(run, 20)
        (tmp_path / "held").touch()
        run.wait_for("copies under way", lambda: any("holds a copy" in text_of(run, task) for task in ("ps.0", "ps.1")))
        run.wait_step(run.step() + 20)
        whole = newest_slot(run).step  # run.json may still be of the previous snapshot
        run.kill("chief")
        run.wait_event("recovered", 2, "chief")  # its servers are still copying for the previous one
        recovered = run.events("recovered", "chief")[1]
        assert (recovered["source"], recovered["step"]) == ("memory", whole)
        (tmp_path / "held").unlink()
        wait_for_memory(run, whole)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert not run.events("captured_by_chief")
        assert {e["cause"] for e in run.events("exited") if e["role"].startswith("ps.")} == {"stopped"}
        check(run, stopped["durable_step"])


@pytest.mark.parametrize(("how", "why"), [("unable", "procsv.take"), ("forgets", "not today")])
def test_a_server_that_cannot_capture_is_reported_once_and_the_chief_fetches_its_variables(
    tmp_path: Path, how: str, why: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--ps", "2", "--drop-in", "--snapshot-secs", "0.2", "train.py", how)
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        wait_for_memory(run, wait_for_memory(run, 20))
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (said,) = run.events("captured_by_chief")
        assert why in said["why"]
        (stopped,) = run.events("stopped")
        check(run, stopped["durable_step"])


@pytest.mark.parametrize("first", ["all", "servers"])
def test_a_sigterm_to_every_process_at_once_or_to_the_servers_first_loses_no_step(tmp_path: Path, first: str) -> None:
    """Slurm and systemd end jobs this way. The servers' variables are saved before the servers end."""
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--ps", "2", "--drop-in", "--snapshot-secs", "60", "--grace", "60s", "train.py")
    with launched(tmp_path / "run", *options, cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        step = run.step() + 10
        run.wait_step(step)
        pids = {one["role"]: one["pid"] for one in run.ask_status()["processes"]}
        servers = [pids["ps.0"], pids["ps.1"]]
        for pid in servers if first == "servers" else ():
            os.kill(pid, signal.SIGTERM)
        if first == "servers":
            logs = [run.logdir / "procsv" / "logs" / f"ps.{number}.1.log" for number in (0, 1)]
            run.wait_for("both have heard it", lambda: all("SIGTERM" in log.read_text() for log in logs))
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"] > step
        check(run, stopped["step"])
        assert {e["code"] for e in run.events("exited") if e["role"].startswith("ps.")} == {75}
