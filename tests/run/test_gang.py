"""When one of two tasks that train in step fails, both restart and end with the same bits."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_row_13_out_of_memory import a_small_cgroup
from tests.support import standing
from tests.support.launched import Launched, launched, procsv
from tests.support.numpy_training import digest_after
from tests.support.small_places import in_cgroup

pytestmark = pytest.mark.fault

STEPS, GATE = 500, 450  # the gate opens only when the test opens it
ROOM_BYTES, TAKEN_BYTES = 2**30, 2**31  # the launch's own cgroup; and what one of its tasks then allocates
PROGRAM = f"""
import hashlib, os, threading
from pathlib import Path
import tensorflow as tf
from tensorflow.python.eager.context import context
import procsv

strategy, pause, own = tf.distribute.MultiWorkerMirroredStrategy(), threading.Event(), os.environ["PROCSV_TASK"]
with strategy.scope():
    weights, momentum = tf.Variable(tf.random.stateless_normal([1000], [1, 2])), tf.Variable(tf.zeros([1000]))
    own_steps = tf.Variable(  # each replica has its own, and only all together can read their sum
        0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    )
step = tf.Variable(0, dtype=tf.int64)

@tf.function(autograph=False)  # autograph leaves files behind where a process is killed
def train(number):
    def one():
        replica = tf.distribute.get_replica_context()
        batch = tf.random.stateless_normal([1000], tf.stack([number, tf.cast(replica.replica_id_in_sync_group, tf.int64)]))
        momentum.assign(0.9 * momentum + replica.all_reduce("sum", tf.sin(weights) * batch))
        weights.assign_sub(0.01 * momentum)
        own_steps.assign_add(1)
    strategy.run(one)

checkpoint = tf.train.Checkpoint(step=step, weights=weights, momentum=momentum, own_steps=own_steps)
manager = procsv.CheckpointManager(checkpoint, None if own == "worker.0" else "elsewhere", step_counter=step)
manager.restore_or_initialize()
while int(step) < {STEPS} and not manager.should_stop():
    train(tf.identity(step))
    step.assign_add(1)
    manager.step()
    if int(step) == 20:
        manager.save()
    pause.wait(0.01)
    while int(step) == {GATE} and not Path("open").exists() and not manager.should_stop():
        pause.wait(0.05)
manager.close()
print("heartbeat", context().coordination_service.heartbeat_timeout_in_ms, flush=True)
if int(step) == {STEPS}:
    assert int(own_steps.values[0]) == {STEPS}
    print("variables", hashlib.sha1(weights.numpy().tobytes() + momentum.numpy().tobytes()).hexdigest(), flush=True)
"""
# The same without TensorFlow, for tests that do not need it: each task makes its own steps.
ARRAYS = f"from tests.support.numpy_training import train_in_step\n\ntrain_in_step({STEPS}, {GATE})\n"
ENDS_BY_ORDER = f"""
import os
from pathlib import Path
from tests.support.numpy_training import train_in_step

own = os.environ["PROCSV_TASK"]


def obey():
    if Path("raise", own).exists():
        Path("raise", own).unlink()
        raise RuntimeError("as it was told")
    if Path("take", own).exists():
        Path("take", own).unlink()
        bytearray(b"1") * {TAKEN_BYTES}


train_in_step({STEPS}, {GATE}, obey)
"""
OPTIONS = ("--workers", "2", "--no-chief", "--snapshot-secs", "0.2")
TASKS = ("worker.0", "worker.1")


def variables_of(run: Launched) -> set[str]:
    """Return the variables with which the tasks have ended."""
    logs = [log.read_text() for task in TASKS for log in (run.logdir / "procsv" / "logs").glob(f"{task}.*.log")]
    return set(re.findall(r"^.*variables (\w+)$", "\n".join(logs), re.MULTILINE))


def ends(run: Launched, incarnation: int) -> dict[str, tuple[str, str]]:
    """Return the cause and evidence of the ends in that generation."""
    found = [entry for entry in run.events("exited") if entry["role"] in TASKS and entry["incarnation"] == incarnation]
    return {entry["role"]: (entry["cause"], entry["evidence"]) for entry in found}


@contextlib.contextmanager
def in_little_room() -> Iterator[tuple[str, ...]]:
    """Limit a run with all its processes to ROOM_BYTES, or do nothing if no cgroup can be made."""
    with a_small_cgroup(ROOM_BYTES) as cgroup:
        yield in_cgroup(cgroup) if cgroup is not None else ()


def wait_formed(run: Launched, generation: int) -> None:
    run.wait_event("gang_formed", generation)
    formed = run.events("gang_formed")[-1]
    assert formed["generation"] == generation
    begun = [entry["step"] for entry in run.events("recovered") if entry["incarnation"] == generation]
    assert begun == [formed["step"]] * 2


def wait_snapshot(run: Launched) -> None:
    """Wait until its next failure counts as one after progress, unless it has reached the gate."""
    begun = run.events("gang_formed")[-1]["step"]
    run.wait_for(
        "a snapshot",
        lambda: json.loads((run.logdir / "procsv" / "run.json").read_text())["memory_step"] >= min(begun + 1, GATE),
    )


@pytest.mark.long
def test_row_60_a_gang_restarts_as_one_and_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", *OPTIONS, "train.py", cwd=tmp_path, standby=None) as run:
        wait_formed(run, 1)
        wait_snapshot(run)

        run.kill("worker.1")
        wait_formed(run, 2)
        assert {task: cause for task, (cause, _) in ends(run, 1).items()} == {
            "worker.0": "lost-peer",
            "worker.1": "killed",
        }
        assert run.events("gang_formed")[-1]["step"] > 0

        wait_snapshot(run)
        run.kill("worker.1", signal.SIGSTOP)  # it is silent, and the other task waits for it in a call
        wait_formed(run, 3)
        assert ends(run, 2)["worker.0"][0] == ends(run, 2)["worker.1"][0] == "lost-peer"
        assert "SIGSTOP" in ends(run, 2)["worker.1"][1]
        assert json.loads((run.logdir / "procsv" / "run.json").read_text())["no_progress_count"] <= 1

        answer = procsv("stop", str(run.logdir))
        assert answer.returncode == 0, answer.stderr
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        assert stopped["durable_step"] == stopped["step"]
        assert [entry["role"] for entry in run.events("exited") if entry["role"] in TASKS][-2:] == [
            "worker.0",
            "worker.1",
        ]
        assert not run.events("gave_up")

    with launched(tmp_path / "run", *OPTIONS, "train.py", cwd=tmp_path, standby=None) as again:
        again.wait_event("gang_formed", 4)
        assert again.events("gang_formed")[-1]["step"] == stopped["step"]
        (tmp_path / "open").touch()
        again.assert_completed()
    with launched(tmp_path / "alone", *OPTIONS, "train.py", cwd=tmp_path, standby=None) as alone:
        alone.assert_completed()
        assert len(alone.events("gang_formed")) == 1
        assert "heartbeat 0" in alone.said().splitlines(), "nobody has set it: it is TensorFlow's own"
    assert variables_of(again) == variables_of(alone)
    assert len(variables_of(alone)) == 1
    assert not (tmp_path / "elsewhere").exists(), "only the first saves"


SAVES = """
import os
import tensorflow as tf
import procsv

own, step = os.environ["PROCSV_TASK"], tf.Variable(0, dtype=tf.int64)
directory = "chiefs" if own == "worker.0" else "elsewhere"
manager = procsv.CheckpointManager(tf.train.Checkpoint(step=step), directory, step_counter=step)
manager.restore_or_initialize()
step.assign_add(1)
manager.step()
path = manager.save()
if own == "worker.0":
    manager.sync()
print(own, "saves in", os.path.abspath(os.path.dirname(path)), os.path.abspath(manager.directory), flush=True)
manager.close()
"""


@pytest.mark.long
def test_in_the_first_launch_all_tasks_return_the_path_in_the_chiefs_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SAVES)
    done = procsv("launch", *OPTIONS, "--standby", "off", "train.py")
    assert done.returncode == 0, done.stderr
    logs, chiefs = tmp_path / "runs" / "train" / "procsv" / "logs", tmp_path / "chiefs"
    lines = [line for log in logs.glob("worker.*.1.log") for line in log.read_text().splitlines()]
    said = {line for line in lines if " saves in " in line}
    assert said == {f"{task} saves in {chiefs} {chiefs}" for task in TASKS}
    assert (chiefs / "ckpt-1.index").exists()


@pytest.mark.long
def test_row_60_a_gang_restarts_after_the_death_of_its_chief_an_exception_and_running_out_of_memory(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ENDS_BY_ORDER)
    (tmp_path / "raise").mkdir()
    (tmp_path / "take").mkdir()
    with (
        in_little_room() as room,
        launched(tmp_path / "run", *OPTIONS, "train.py", cwd=tmp_path, standby=None, within=room) as run,
    ):
        wait_formed(run, 1)
        wait_snapshot(run)
        run.kill("worker.0")
        wait_formed(run, 2)
        assert [ends(run, 1)[task][0] for task in TASKS] == ["killed", "lost-peer"]

        wait_snapshot(run)
        (tmp_path / "raise" / "worker.1").touch()
        wait_formed(run, 3)
        assert ends(run, 2)["worker.1"] == ("exception", "RuntimeError: as it was told")
        assert ends(run, 2)["worker.0"][0] == "lost-peer"

        if room:
            wait_snapshot(run)
            (tmp_path / "take" / "worker.1").touch()
            wait_formed(run, 4)
            assert [ends(run, 3)[task][0] for task in TASKS] == ["lost-peer", "oom"]
        (tmp_path / "open").touch()
        run.assert_completed()
    assert variables_of(run) == {digest_after(STEPS)}


@pytest.mark.long
def test_the_replicas_example_ends_with_the_same_digest_after_a_kill(tmp_path: Path) -> None:
    program = (standing.PROGRAM, "keras_replicas", "--steps", "120")
    killed = tmp_path / "killed"
    with launched(tmp_path / "run", *OPTIONS, *program, standby=None, STANDS_AT="60", STANDS_UNTIL=str(killed)) as run:
        run.wait_event("gang_formed", 1)
        run.kill("worker.1")
        killed.touch()
        run.assert_completed()
        assert [entry["generation"] for entry in run.events("gang_formed")] == [1, 2]
    with launched(tmp_path / "alone", *OPTIONS, *program, standby=None) as alone:
        alone.assert_completed()
    assert variables_of(run) == variables_of(alone)
    assert len(variables_of(alone)) == 1
