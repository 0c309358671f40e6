"""While a chief is away, a server captures what all of them hold: a server that dies then costs no more than at any other time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.identity import TaskId
from procsv.base.run.paths import find_paths
from procsv.base.system.locks import FileLock
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_state import SlotInfo
from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import (
    AWAY,
    HELD_COPY,
    JOIN,
    ROOMY_SERVER,
    TASK,
    kill_chief,
    monitored,
    newest_slot,
    text_of,
    wait_for_memory,
)

pytestmark = pytest.mark.fault

PROGRAM = (
    TASK
    + AWAY
    + ROOMY_SERVER
    + HELD_COPY
    + JOIN
    + """
ones = tf.ones_initializer()
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    kept = [tf.get_variable("dense", [300_000], initializer=ones, use_resource=True)]
    kept += [tf.get_variable(f"small{i}", [7], tf.float64, initializer=ones, use_resource=True) for i in range(5)]
    kept.append(tf.get_variable("in_place", [300_000], initializer=ones, use_resource=False))
    tf.get_variable("names", initializer=tf.constant(["a", "b"]), use_resource=True)
    tf.get_variable("name", initializer=tf.constant("c"), use_resource=True)
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="table")
    counted = table.insert(tf.constant(["a", "b"]), tf.stack([step + 1, 5]))
with tf.device("/job:ps/task:1"):
    kept += [tf.get_variable("half", [9_000_000], tf.bfloat16, initializer=ones, use_resource=True)]
    kept += [tf.get_variable("count", [], tf.int64, initializer=ones, use_resource=True)]
with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_device="/job:ps", worker_device=own)):
    kept += list(tf.get_variable("parts", [50, 3], initializer=ones, partitioner=tf.fixed_size_partitioner(4)))
if is_chief and "own" in sys.argv:
    with tf.device("/job:chief/task:0"):
        tf.get_variable("here", [10], initializer=ones, use_resource=True)
updates = [tf.assign_add(v, tf.fill(v.shape, tf.cast((step + 1) % 16 - step % 16, v.dtype.base_dtype))) for v in kept]
with tf.control_dependencies([*updates, counted]):
    train = tf.assign_add(step, 1, use_locking=True)
"""
    + monitored(
        """
        if is_chief:  # one task alone trains: what each step leaves is known
            session.run(step)
        elif os.path.exists("paused"):
            print("paused at", session.run(step), flush=True)
        else:
            session.run(train)
        pause.wait(0.05)
        """,
        hooks="[tf.train.StopAtStepHook(last_step=100_000)]",
    )
)
NAMES = ("dense", "in_place", "half", "count", "parts", *(f"small{i}" for i in range(5)))


def wait_for_slot(run: Launched, step: int) -> SlotInfo:
    """The first snapshot seen that is later than `step`."""
    run.wait_for(f"a snapshot after step {step}", lambda: newest_slot(run).step > step)
    return newest_slot(run)


def check(run: Launched, step: int) -> None:
    """The newest checkpoint is of `step`, and every element of it is what it was then."""
    path = tf.train.latest_checkpoint(str(run.logdir))
    assert path.endswith(f"-{step}")
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("global_step") == step
    for name in NAMES:
        found = np.asarray(reader.get_tensor(name)).astype(np.float64)
        assert found.min() == found.max() == 1 + step % 16, name
    assert reader.get_tensor("names").tolist() == [b"a", b"b"]
    assert reader.get_tensor("name") == b"c"
    assert dict(zip(reader.get_tensor("table-keys"), reader.get_tensor("table-values"), strict=True)) == {
        b"a": step,
        b"b": 5,
    }


def is_locked(path: Path) -> bool:
    """Whether some process has locked that file."""
    return FileLock(path).is_held()


def paused_at(run: Launched) -> int:
    """The step that the worker has paused at, last; 0 if it has not."""
    return int(told_pauses(run)[-1]) if told_pauses(run) else 0


def told_pauses(run: Launched) -> list[str]:
    return re.findall(r"^paused at (\d+)$", text_of(run, "worker.0"), re.MULTILINE)


def pause(run: Launched, tmp_path: Path) -> None:
    """The worker stands between two steps from here on."""
    said = len(told_pauses(run))
    (tmp_path / "paused").touch()
    run.wait_for("a pause", lambda: len(told_pauses(run)) > said)


def hold_copy(run: Launched, tmp_path: Path, begin: Callable[[], None] = lambda: None) -> None:
    """A server stands in a copy from here on; `begin`: what there is to copy, if there is nothing."""

    def said() -> int:
        return text_of(run, "ps.0").count("holds a copy") + text_of(run, "ps.1").count("holds a copy")

    before = said()
    (tmp_path / "held").touch()
    begin()
    run.wait_for("a copy under way", lambda: said() > before)


def options(*args: str) -> tuple[str, ...]:
    return ("--workers", "1", "--ps", "2", "--drop-in", "--snapshot-secs", "0.2", "train.py", *args)


def test_row_61_a_server_that_dies_while_the_chief_is_away_costs_no_more_than_a_snapshot_interval(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    dies = "trainer.restore@2=kill"
    with launched(tmp_path / "run", *options("waits"), cwd=tmp_path, standby=None, PROCSV_FAILPOINTS=dies) as run:
        for task in ("chief", "worker.0"):
            run.wait_event("recovered", 1, task)
        wait_for_memory(run, 20)
        kill_chief(run, tmp_path)
        left = newest_slot(run)
        first = wait_for_slot(run, left.step)
        assert (first.task, first.run, first.incarnation) == (left.task, left.run, left.incarnation)
        wait_for_slot(run, first.step)  # it goes on
        (said,) = run.wait_event("captured_by_server")
        assert (said["role"], said["chief"]) == ("ps.0", 1)
        beats = HeartbeatReader(find_paths(run.logdir).heartbeat(TaskId("worker"), 1))

        def has_read(step: int) -> bool:
            return (beat := beats.read()) is not None and beat.step >= step

        hold_copy(run, tmp_path)
        pause(run, tmp_path)
        (tmp_path / "paused").unlink()
        run.wait_for("later steps", lambda: has_read(paused_at(run) + 1))
        pause(run, tmp_path)
        (tmp_path / "held").unlink()
        kept = wait_for_slot(run, paused_at(run) - 1)  # which was begun behind its step, and behind what was held
        hold_copy(run, tmp_path, lambda: (tmp_path / "paused").unlink())
        pause(run, tmp_path)
        reached = paused_at(run)
        run.wait_for("its step", lambda: has_read(reached))
        run.kill("worker.0")
        assert run.wait_event("exited", 1, "worker.0")[0]["step"] == reached
        run.kill("ps.1")
        run.wait_event("exited", 1, "ps.1")
        (tmp_path / "held").unlink()
        (tmp_path / "paused").unlink()
        (tmp_path / "away").unlink()
        run.wait_event("exited", 2, "chief")
        assert not find_paths(run.logdir).deputy_plan.exists(), "nobody captures what is half restored"
        run.wait_event("recovered", 2, "chief")
        recovered = run.events("recovered", "chief")[1]
        assert (recovered["source"], recovered["step"]) == ("memory", kept.step)
        assert recovered["lost_steps"] == reached - kept.step > 0, "of all tasks, whatever the chief had seen of them"
        assert run.lost_steps() == recovered["lost_steps"]
        wait_for_memory(run, kept.step)
        assert newest_slot(run).incarnation == 3
        pause(run, tmp_path)  # so that the last state is that of a step, whoever ends first
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        check(run, stopped["durable_step"])


def test_row_61_a_chief_that_comes_back_puts_an_end_to_what_a_server_is_copying_for_it_and_numbers_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", *options("waits"), cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        wait_for_memory(run, 20)
        kill_chief(run, tmp_path)
        wait_for_slot(run, newest_slot(run).step)
        hold_copy(run, tmp_path)
        kept = newest_slot(run)
        (tmp_path / "away").unlink()
        run.wait_for("a chief that waits", lambda: is_locked(find_paths(run.logdir).chief_lock))
        (tmp_path / "held").unlink()
        run.wait_event("recovered", 2, "chief")
        assert run.events("recovered", "chief")[1]["source"] == "alive"
        slots = scan_slots(find_paths(run.logdir).shm_dir)
        assert all(info.sequence <= kept.sequence for info in slots if info.incarnation == 1), "it was given up"
        run.wait_for("a snapshot of the chief's", lambda: newest_slot(run).incarnation == 2)
        assert newest_slot(run).sequence > kept.sequence
        assert not run.events("captured_by_chief")
        pause(run, tmp_path)  # so that the last state is that of a step, whoever ends first
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        check(run, stopped["durable_step"])
        assert len(run.events("captured_by_server")) == 1


def test_nothing_is_captured_for_a_chief_that_holds_variables_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", *options("own"), cwd=tmp_path, standby=None) as run:
        run.wait_event("recovered", 1, "chief")
        wait_for_memory(run, 20)
        assert not find_paths(run.logdir).deputy_plan.exists()
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
