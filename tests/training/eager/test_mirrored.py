"""A CheckpointManager of a loop under MirroredStrategy: counters made in its scope, and values that differ between replicas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import contextlib, sys
import tensorflow as tf
import procsv
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
directory, what = sys.argv[1:]
with strategy.scope():
    v = tf.Variable([1.0, 2.0])
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    reads, adds = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    seen = tf.Variable(0.0, synchronization=reads, aggregation=adds, trainable=False)
objects = {"v": v, "step": step} | ({"seen": seen} if what == "unequal" else {})
with strategy.scope() if what == "in scope" else contextlib.nullcontext():
    manager = procsv.CheckpointManager(tf.train.Checkpoint(**objects), directory, step_counter=step)
with manager:
    manager.restore_or_initialize()
    for _ in range(5):
        strategy.run(lambda: v.assign_add([1.0, 1.0]))
        step.assign_add(1)
        manager.step()
    print("saved", manager.save(wait=True))
    print("step", step.values[0].numpy(), "latest", manager.latest_checkpoint)
"""


@pytest.mark.long
@pytest.mark.parametrize("what", ["in scope", "beside it", "unequal"])
def test_a_counter_and_a_manager_may_be_made_in_the_scope_and_unequal_replicas_are_named(
    tmp_path: Path, what: str
) -> None:
    def train() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), what],
            cwd=ROOT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    for number, step in ((1, 5), (2, 10)):
        done = train()
        assert done.returncode == 0, done.stderr
        path = f"{tmp_path}/run/ckpt-{number}"
        assert done.stdout == f"saved {path}\nstep {step} latest {path}\n"
        told = "1 variable of the strategy " in done.stderr and "(seen)" in done.stderr
        assert told is (what == "unequal"), done.stderr
