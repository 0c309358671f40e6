"""In a program without a global step, the session's calls count as progress."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

CALLS = 400
TRAIN = f"""
import time
import tensorflow as tf
from tests.support.standing import stand_at
tf1 = tf.compat.v1
tf1.disable_eager_execution()
total = tf1.get_variable("total", [], tf.int32, initializer=tf1.zeros_initializer())
train = total.assign_add(1)
sv = tf1.train.Supervisor(summary_op=None, save_model_secs=1)
with sv.managed_session() as session:
    print("goes on from", session.run(total), flush=True)
    while not sv.should_stop() and (now := session.run(train)) < {CALLS}:
        time.sleep(0.01)
        stand_at(now)
print("ended with", now, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def test_a_program_without_a_global_step_survives_more_kills_than_may_pass_without_progress(
    tmp_path: Path, program: str
) -> None:
    kills = "kill trainer every 80 steps 3 times"
    options = ["--drop-in", "--snapshot-secs", "0.2", "--max-failures", "2", "--backoff", "0..0", "--fault", kills]
    with launched(tmp_path / "logdir", *options, program) as run:
        run.assert_completed()
    said = run.said()
    assert "no global step: " in said
    assert said.count(" at once, from step ") == 3
    assert "from the beginning" not in said.partition("starting it again")[2]
    assert "its first step" not in said
    assert "step -1" not in said
    assert f"ended with {CALLS}" in said
    assert run.lost_steps() < 240
    assert [path.name for path in run.logdir.glob("*.index")] == ["model.ckpt.index"]  # as TensorFlow names it


def test_a_program_without_a_global_step_reports_after_a_stop_that_it_resumes(tmp_path: Path, program: str) -> None:
    with launched(tmp_path / "logdir", "--drop-in", program, STANDS_AT="100") as run:
        run.wait_step(50)
        run.kill("watchdog", signal.SIGINT)
        assert run.wait_end() == 75
        stopped = run.events("stopped")[0]
    assert stopped["step"] == stopped["durable_step"] >= 50
    with launched(tmp_path / "logdir", "--drop-in", program) as run:
        run.assert_completed()
    assert f"from step {stopped['step']} on disk" in run.said()
    assert run.said().count("goes on from 0") == 1  # the first launch
