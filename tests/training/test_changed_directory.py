"""A program may change its directory while it trains: relative paths keep their first meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched import environment

BEGIN = """
import os
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
os.makedirs("elsewhere")
"""
PROGRAMS = {
    "a manager": """
step = tf.Variable(0, dtype=tf.int64)
with procsv.CheckpointManager(tf.train.Checkpoint(step=step), "saved", max_to_keep=3) as manager:
    manager.restore_or_initialize()
    os.chdir("elsewhere")
    for _ in range(3):
        step.assign_add(1)
        manager.step()
    manager.save()
""",
    "a drop-in manager": """
procsv.install()
step = tf.Variable(0, dtype=tf.int64)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), "saved", max_to_keep=3)
os.chdir("elsewhere")
step.assign_add(1)
manager.save()
manager.sync()
""",
    "a Supervisor": """
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
with procsv.Supervisor(logdir="saved").managed_session() as session:
    os.chdir("elsewhere")
    session.run(train)
""",
    "a fit": """
import keras
import numpy as np
class Leave(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        os.chdir(there)
there = os.path.abspath("elsewhere")
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
ours = procsv.keras.BackupAndRestore("saved", delete_checkpoint=False)
model.fit(np.ones((8, 1)), np.ones(8), verbose=0, callbacks=[Leave(), ours])
""",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", PROGRAMS)
def test_checkpoints_go_where_the_program_said_before_it_changed_its_directory(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGIN + PROGRAMS[kind]]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert list((tmp_path / "saved").glob("*.index"))
    assert not list((tmp_path / "elsewhere").iterdir())
    text = (tmp_path / "saved/checkpoint").read_text()
    assert str(tmp_path) not in text  # the paths in it are relative, as TensorFlow writes them for a relative directory


@pytest.mark.long
def test_a_launched_program_that_starts_in_another_directory_saves_there(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import os; os.makedirs('sub'); os.chdir('sub')\n" + BEGIN + PROGRAMS["a Supervisor"])
    command = [sys.executable, "-m", "procsv", "launch", "--standby", "off", str(program)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert list((tmp_path / "sub/saved").glob("*.index"))
    assert not (tmp_path / "saved").exists()
