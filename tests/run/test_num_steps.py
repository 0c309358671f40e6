"""A StopAtStepHook with num_steps makes as many steps through crashes and stops as without them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

STEPS = 400
# Waits at step 300 until it is stopped or the logdir has a file `go`.
TRAIN = """
import os, sys, time
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
train = tf1.train.get_or_create_global_step().assign_add(1)
for _ in range(int(sys.argv[2])):
    with tf1.train.SingularMonitoredSession(checkpoint_dir=sys.argv[1]) as session:  # an evaluation
        session.run(tf1.train.get_global_step())
    hooks = [tf1.train.StopAtStepHook(num_steps=int(sys.argv[3]))]
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=sys.argv[1], hooks=hooks) as session:
        while not session.should_stop():
            step = session.run(train)
            time.sleep(0.01)
            while step >= 300 and not session.should_stop() and not os.path.exists(os.path.join(sys.argv[1], "go")):
                time.sleep(0.01)
"""


def test_num_steps_are_trained_once_through_a_kill_and_a_stop_and_again_after_the_end(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    options = ["--drop-in", "--resume", "--snapshot-secs", "0.2", "--fault", "kill trainer at step 100"]
    with launched(tmp_path / "logdir", *options, str(program), "{logdir}", "1", str(STEPS)) as run:
        run.wait_step(200)
        run.kill("watchdog", signal.SIGINT)
        assert run.wait_end() == 75
    (tmp_path / "logdir" / "go").touch()
    for end in (STEPS, 2 * STEPS):
        with launched(tmp_path / "logdir", *options, str(program), "{logdir}", "1", str(STEPS)) as run:
            run.assert_completed()
        assert run.events("run_completed")[-1]["step"] == end


def test_each_session_of_a_program_trains_its_own_num_steps(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    with launched(tmp_path / "logdir", "--drop-in", str(program), "{logdir}", "3", "40") as run:
        run.assert_completed()
    assert run.events("run_completed")[-1]["step"] == 120


def test_a_session_that_is_killed_after_others_trains_its_own_num_steps_once(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    options = ["--drop-in", "--snapshot-secs", "0.2", "--fault", "kill trainer at step 60"]
    with launched(tmp_path / "logdir", *options, str(program), "{logdir}", "3", "40") as run:
        run.assert_completed()
    assert len(run.events("recovered")) == 2
    assert run.events("run_completed")[-1]["step"] == 120


SAVES = """
import sys, time
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
train = tf1.train.get_or_create_global_step().assign_add(1)


class Tell(tf1.train.CheckpointSaverListener):
    def before_save(self, session, step):
        print("saves", step, flush=True)


hooks = [tf1.train.StopAtStepHook(last_step=100)]
hooks.append(tf1.train.CheckpointSaverHook(sys.argv[1], save_steps=30, listeners=[Tell()]))
with tf1.train.SingularMonitoredSession(hooks=hooks, checkpoint_dir=sys.argv[1]) as session:
    while not session.should_stop():
        session.run(train)
        time.sleep(0.01)
"""


def test_save_steps_stay_the_same_although_the_state_between_two_saves_is_restored(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(SAVES)
    options = ["--drop-in", "--snapshot-secs", "0.05", "--fault", "kill trainer at step 50"]
    with launched(tmp_path / "logdir", *options, str(program), "{logdir}") as run:
        run.assert_completed()
    saved = [int(line.split()[1]) for line in run.said().splitlines() if line.startswith("saves ")]
    resumed = run.events("recovered")[-1]["step"]
    assert 30 < resumed <= 50
    assert sorted(set(saved) - {resumed}) == [0, 30, 60, 90, 100]
