"""Trainings that follow each other in one process keep their states and their errors apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from procsv.base import exit_codes
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

FOLDS = """
import sys, time
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
for fold in range(2):
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train, hooks = step.assign_add(1), [tf1.train.StopAtStepHook(last_step=40)]
        if sys.argv[1] == "Supervisor":
            session_of, ends = procsv.Supervisor().managed_session, lambda at: at >= 40
        else:
            session_of, ends = lambda: procsv.MonitoredTrainingSession(hooks=hooks), lambda at: session.should_stop()
        with session_of() as session:
            at, begun = 0, False
            while not ends(at):
                at = session.run(train if begun or sys.argv[1] != "Supervisor" else step)
                if not begun:
                    print("fold", fold, "begins at", at, flush=True)
                begun = True
                time.sleep(0.01)
"""


@pytest.mark.parametrize(("kind", "first"), [("Supervisor", 0), ("MonitoredTrainingSession", 1)])
def test_a_second_graph_without_a_directory_does_not_start_from_the_first_ones_state(
    kind: str, first: int, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(FOLDS)
    with launched(tmp_path / "logdir", str(program), kind) as run:
        run.assert_completed()
    said = run.said()
    assert f"fold 0 begins at {first}" in said
    assert f"fold 1 begins at {first}" in said
    assert said.count("another graph") == 1
    assert tf.train.load_checkpoint(str(tmp_path / "logdir")).get_tensor("global_step") == 40


LOOP = """
import os, signal, sys
import tensorflow as tf
import procsv
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
v, step = tf.Variable(0), tf.Variable(0, dtype=tf.int64)


def train(manager, until):
    manager.restore_or_initialize()
    while step < until:
        v.assign_add(2)
        if step == 5 and os.environ["PROCSV_INCARNATION"] == "1":
            eval(sys.argv[1])  # in the middle of a step
        step.assign_add(1)
        manager.step()


try:
    with procsv.CheckpointManager(tf.train.Checkpoint(v=v, step=step), snapshot_secs=None) as manager:
        train(manager, 3)
        raise ValueError
except ValueError:
    pass
train(procsv.CheckpointManager(tf.train.Checkpoint(v=v, step=step), snapshot_secs=0.01), 10)
"""


@pytest.mark.parametrize("leave", ["sys.exit(3)", "signal.raise_signal(signal.SIGUSR1)"])
def test_a_caught_error_does_not_keep_the_next_training_from_saving_and_an_exit_saves_no_half_step(
    tmp_path: Path, leave: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(LOOP)
    with launched(tmp_path / "logdir", str(program), leave) as run:
        run.assert_completed()
    saved = tf.train.load_checkpoint(str(tmp_path / "logdir"))
    assert saved.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 10
    assert saved.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE") == 20


SECOND_DIRECTORY = """
import sys
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
for directory in (None, "second"):
    if sys.argv[1] == "CheckpointManager":
        step = tf.Variable(0, dtype=tf.int64)
        with procsv.CheckpointManager(tf.train.Checkpoint(step=step), directory, step_counter=step) as manager:
            manager.restore_or_initialize()
            print("begins at", int(step), flush=True)
            while step < 20:
                step.assign_add(1)
                manager.step()
    else:
        with tf.Graph().as_default():
            step = tf1.train.get_or_create_global_step()
            train = step.assign_add(1)
            with procsv.Supervisor(logdir=directory).managed_session() as session:
                print("begins at", session.run(step), flush=True)
                while session.run(train) < 20:
                    pass
"""


@pytest.mark.parametrize("options", [(), ("--map-logdir",)])
@pytest.mark.parametrize("kind", ["Supervisor", "CheckpointManager"])
def test_a_second_training_in_a_directory_of_its_own_is_refused_and_not_given_the_first_ones_state(
    kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(SECOND_DIRECTORY)
    with launched(tmp_path / "logdir", *options, str(program), kind, cwd=tmp_path) as run:
        assert run.wait_end() == exit_codes.GAVE_UP
    said = run.said()
    assert said.count("begins at") == 1
    assert run.events("exited", "trainer")[-1]["code"] == exit_codes.MISCONFIGURED
    assert not (tmp_path / "second").exists()
