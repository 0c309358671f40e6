"""With --consistent-snapshots a checkpoint holds one step of all tasks, or its manifest says that it is mixed."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import (
    JOIN,
    SERVER,
    TASK,
    monitored,
    text_of,
)

pytestmark = [pytest.mark.fault, pytest.mark.long]

# Each step adds one to both variables and then to the step. While the file `slow` exists, worker.1
# waits between the two and worker.0 waits between two of its steps. Then only the chief changes the
# state, and never during a capture.
PROGRAM = (
    TASK
    + SERVER
    + JOIN
    + """
import pathlib
import numpy as np

task, slow, stands_still = os.environ["PROCSV_TASK"], pathlib.Path("slow"), pathlib.Path("stands")

def stands():
    return task == "worker.1" and slow.exists()

def wait():
    if stands():
        stands_still.touch()
    while stands():
        pause.wait(0.01)
    return np.int64(0)

zeros = tf.zeros_initializer()
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    first = tf.get_variable("first", [100_000], initializer=zeros, use_resource=True)
with tf.device("/job:ps/task:1"):
    second = tf.get_variable("second", [100_000], initializer=zeros, use_resource=True)
with tf.device(own):
    with tf.control_dependencies([tf.assign_add(first, tf.ones([100_000]))]):
        waited = tf.numpy_function(wait, [], tf.int64)
    with tf.control_dependencies([waited]), tf.device("/job:ps/task:1"):
        added = tf.assign_add(second, tf.ones([100_000]))
    with tf.control_dependencies([added]):
        train = tf.assign_add(step, 1, use_locking=True)
"""
    + monitored(
        """
        if task == "worker.0" and slow.exists() and stands_still.exists():
            print("all stand at", session.run(step), flush=True)
            while slow.exists():
                pause.wait(0.01)
        session.run(train)
        pause.wait(0.03)
        """,
        save_checkpoint_secs=1,
    )
)


SUFFIXES = (".index", ".data-00000-of-00001", ".manifest.json")


class Saved(NamedTuple):
    step: int  # in its name
    is_mixed: bool  # in its manifest
    values: set[float]  # all values in it


def saved(run: Launched) -> list[Saved]:
    """Return the kept checkpoints."""
    found = []
    for manifest in sorted(run.logdir.glob("*.manifest.json")):
        path = str(manifest).removesuffix(".manifest.json")
        try:
            found.append(read_saved(path, manifest.stat().st_mtime_ns, manifest))
        except (FileNotFoundError, tf.errors.OpError):  # TensorFlow has several exceptions for a missing file
            if all(
                Path(path + suffix).exists() for suffix in SUFFIXES
            ):  # otherwise it was removed because a newer one is there
                raise
    return found


@functools.lru_cache(maxsize=100)
def read_saved(path: str, written_ns: int, manifest: Path) -> Saved:
    """Read a checkpoint. `written_ns`, its manifest's Unix time, tells it from a later one of the same path."""
    reader = tf.train.load_checkpoint(path)
    values: set[float] = set()
    for name in ("first", "second", "global_step"):
        values |= set(np.unique(reader.get_tensor(name)).astype(float).tolist())
    return Saved(int(path.rpartition("-")[2]), json.loads(manifest.read_text())["mixed"], values)


def check_saved(run: Launched) -> list[Saved]:
    """Return the kept checkpoints. Each one that does not say it is mixed must hold only the step in its name."""
    found = saved(run)
    for one in found:
        assert one.is_mixed or one.values == {one.step}, one
    return found


def wait_saved(run: Launched, is_mixed: bool, after: int) -> Saved:
    """Wait for a checkpoint after that step whose manifest says `is_mixed`, and return it."""
    found: list[Saved] = []

    def is_there() -> bool:
        found[:] = [one for one in check_saved(run) if one.is_mixed is is_mixed and one.step > after]
        return bool(found)

    run.wait_for(f"a checkpoint with mixed {is_mixed} after step {after}", is_there)
    return found[0]


def standing_at(run: Launched) -> int:
    """Return the step at which all tasks but the chief have stopped, or -1 until they have."""
    said = re.search(r"^all stand at (\d+)$", text_of(run, "worker.0"), re.MULTILINE)
    return int(said[1]) if said else -1


def test_a_checkpoint_holds_one_step_of_all_tasks_unless_it_says_that_it_is_mixed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options: tuple[Any, ...] = ("--workers", "2", "--ps", "2", "--consistent-snapshots", "--snapshot-secs", "0.2")
    with launched(tmp_path / "run", *options, "--drop-in", "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("recovered", 1, task)
        wait_saved(run, is_mixed=False, after=0)
        run.wait_for("news of a hold", lambda: any(held["is_exact"] for held in run.events("held")))

        (tmp_path / "slow").touch()
        run.wait_for("workers that stand", lambda: standing_at(run) >= 0)
        mixed = wait_saved(run, is_mixed=True, after=standing_at(run))  # captured since
        assert len(mixed.values) == 2, "one has added to the first variable alone"
        assert all(one.is_mixed for one in saved(run) if one.step > standing_at(run))
        run.wait_for("news of none", lambda: not run.events("held")[-1]["is_exact"])
        assert run.events("held")[-1]["why"]

        (tmp_path / "slow").unlink()
        exact = wait_saved(run, is_mixed=False, after=mixed.step)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        (stopped,) = run.events("stopped")
        last = max(check_saved(run))
        assert last.step == stopped["durable_step"] >= exact.step
