"""With --consistent-snapshots no checkpoint mixes the steps of several tasks, or its manifest says that it does."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import JOIN, SERVER, TASK, monitored, text_of

pytestmark = pytest.mark.fault

# Each step adds one to both variables and then to the step; worker.1 stands between the two as long as the file `slow` is there.
PROGRAM = (
    TASK
    + SERVER
    + JOIN
    + """
import pathlib
import numpy as np

def stands():
    return os.environ["PROCSV_TASK"] == "worker.1" and pathlib.Path("slow").exists()

def wait():
    if stands():
        print("stands in a step", flush=True)
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
    + monitored("session.run(train)\npause.wait(0.01)", save_checkpoint_secs=1)
)


def saved(run: Launched) -> list[tuple[bool, set[float]]]:
    """Of each checkpoint that is kept: whether it is mixed by its manifest, and all values in it."""
    found = []
    for manifest in sorted(run.logdir.glob("*.manifest.json")):
        with contextlib.suppress(FileNotFoundError, tf.errors.NotFoundError):  # removed meanwhile: a newer one is there
            reader = tf.train.load_checkpoint(str(manifest).removesuffix(".manifest.json"))
            values: set[float] = set()
            for name in ("first", "second", "global_step"):
                values |= set(np.unique(reader.get_tensor(name)).astype(float).tolist())
            found.append((json.loads(manifest.read_text())["mixed"], values))
    return found


def wait_held(run: Launched, is_exact: bool, after: int) -> None:
    """A word of the journal that says so, behind the first `after` of them."""
    run.wait_for("news of a hold", lambda: any(held["is_exact"] is is_exact for held in run.events("held")[after:]))


def test_a_checkpoint_is_of_one_step_of_all_tasks_unless_it_says_that_it_is_mixed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options: tuple[Any, ...] = ("--workers", "2", "--ps", "2", "--consistent-snapshots", "--snapshot-secs", "0.2")
    with launched(tmp_path / "run", *options, "--drop-in", "train.py", cwd=tmp_path, standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("ready", 1, task)
        wait_held(run, is_exact=True, after=0)
        run.wait_event("checkpoint_durable", len(run.events("checkpoint_durable")) + 4)
        exact = [values for is_mixed, values in saved(run) if not is_mixed]
        assert exact
        assert {len(values) for values in exact} == {1}

        (tmp_path / "slow").touch()
        run.wait_for("a worker in a step", lambda: "stands in a step" in text_of(run, "worker.1"))
        run.wait_event("checkpoint_durable", len(run.events("checkpoint_durable")) + 2)
        assert "was in a step" in run.events("held")[-1]["why"]  # another may have been seen first
        is_mixed, values = max(saved(run), key=lambda each: max(each[1]))
        assert is_mixed
        assert len(values) > 1

        known = len(run.events("held"))
        (tmp_path / "slow").unlink()
        wait_held(run, is_exact=True, after=known)
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
        is_mixed, values = max(saved(run), key=lambda each: max(each[1]))
        assert not is_mixed
        assert len(values) == 1
