"""In a custom loop under a strategy, killed three times, every replica's variables end with the
bits of an undisturbed run.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import mirrored_loop
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM, STEPS = str(Path(mirrored_loop.__file__)), 100
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05")
KILLS = (14, 43, 71)
ONE_VALUE = re.compile("have one value|do not have the values|All have")


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("mirrored", "float"),
        ("mirrored", "mixed precision"),
        ("mirrored", "ema"),
        ("one", "float"),
        ("central", "float"),
    ],
)
def test_a_killed_loop_ends_with_the_bits_of_an_undisturbed_one(strategy: str, kind: str, tmp_path: Path) -> None:
    program = (PROGRAM, strategy, kind, str(STEPS))
    with launched(tmp_path / "alone", *program) as run:
        run.assert_completed()
        wanted = run.digest()
    faults = [word for step in KILLS for word in ("--fault", f"kill trainer at step {step}")]
    with launched(tmp_path / "run", *QUICK, *faults, *program) as run:
        run.assert_completed()
        assert [entry["source"] for entry in run.events("recovered")] == ["fresh", *["memory"] * len(KILLS)]
        assert run.digest() == wanted
        assert not ONE_VALUE.search(run.said())


def test_a_loop_resumes_from_a_checkpoint_on_disk(tmp_path: Path) -> None:
    program = (PROGRAM, "mirrored", "float", str(STEPS))
    with launched(tmp_path / "alone", *program) as run:
        run.assert_completed()
        wanted = run.digest()
    with launched(tmp_path / "run", *QUICK, *program, STANDS_AT="50") as run:
        run.wait_step(30)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == exit_codes.RESUMABLE
    with launched(tmp_path / "run", *QUICK, *program) as run:
        run.assert_completed()
        assert run.events("recovered")[-1]["source"] == "checkpoint"
        assert run.digest() == wanted


TASKS = """
import keras
import tensorflow as tf
import procsv

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
with procsv.CheckpointManager(checkpoint, step_counter=step) as manager:
    manager.restore_or_initialize()
    for _ in range(3):
        step.assign_add(1)
        manager.step()
"""


def test_variables_that_differ_between_tasks_are_named_and_weights_are_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TASKS)
    with launched(tmp_path / "run", "--workers", "2", "--no-chief", "train.py", cwd=tmp_path) as run:
        run.assert_completed()
        said = run.said()
    assert re.search(r"2 variables \(model/.*moving_mean and others\) may differ", said), said
