"""Row 12: whatever a program does that takes long and gets on is not taken for a hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.launched import launched, settings_text

pytestmark = pytest.mark.fault

LAUNCHER = [sys.executable, str(Path(__file__).with_name("launch.py"))]
STEP_S = 3.0

LONG = f"""
import time
import tensorflow as tf
import procsv

tf1 = tf.compat.v1
tf1.disable_eager_execution()


def slow(seconds):
    time.sleep(float(seconds))
    return 0


step = tf1.train.get_or_create_global_step()
seconds = tf1.placeholder(tf.float64, ())
with tf.control_dependencies([tf1.py_func(slow, [seconds], tf.int64)]):
    train = step.assign_add(1)
elsewhere = tf.Graph()
with elsewhere.as_default():
    evaluate = tf1.py_func(slow, [{STEP_S / 2}], tf.int64)
sv = procsv.Supervisor(save_model_secs=0)
with sv.managed_session() as session:
    session.run(train, {{seconds: {STEP_S} + 1}})  # the first one compiles
    for _ in range(100):
        session.run(train, {{seconds: 0.02}})
    with tf1.Session(graph=elsewhere) as other:  # an evaluation in a session of its own
        for _ in range(3):
            other.run(evaluate)
    session.run(train, {{seconds: 0.0}})
    procsv.extend(60)
    time.sleep({STEP_S} + 1)
    session.run(train, {{seconds: 0.0}})
time.sleep({STEP_S} + 1)  # the program's own, after its session
"""


def test_row_12_a_long_first_step_an_evaluation_an_extension_and_the_time_after_a_session_are_no_hang(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(LONG)
    settings = settings_text(hang_timeout_s=STEP_S)
    with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("hang_detected") == []
    assert len(run.events("ready")) == 1
    status = json.loads((run.logdir / "procsv" / "run.json").read_text())
    assert status["step_s"] >= 0.02  # learned, and kept for the next launch


IMPORT_S = 3.0
IMPORTS = f"""
import first, second, third, fourth, procsv
procsv.extend(60)
fourth.wait({IMPORT_S} + 0.7)
print("imported", flush=True)
"""


def test_row_12_a_long_import_is_no_hang_while_modules_come_and_after_an_extension(tmp_path: Path) -> None:
    for name in ("first", "second", "third", "fourth"):
        (tmp_path / f"{name}.py").write_text(f"from time import sleep as wait\nwait({IMPORT_S} / 3)\n")
    (tmp_path / "train.py").write_text(IMPORTS)
    settings = settings_text(hang_limits_s={"import": IMPORT_S})
    with launched(tmp_path / "logdir", settings, str(tmp_path / "train.py"), launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("hang_detected") == []
    assert "imported" in run.said()
