"""Row 38: a platform takes the machine away, at whatever moment: saved before its kill, and no step is lost.

In the middle of steps and before the first: tests/drill/test_preempt_command.py; during an evaluation: tests/training/test_notice.py;
in an import and in the back-off: tests/run/test_preemption.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from procsv.testing import Launch
from tests.support.launched import procsv

pytestmark = pytest.mark.fault

PROGRAM = """
import sys, threading
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
asleep = threading.Event()

def compile_for_ever(value):
    print("compiling", flush=True)
    asleep.wait()
    return value

first = [tf1.numpy_function(compile_for_ever, [0], tf.int64)] if sys.argv[1] == "compile" else []
with tf.control_dependencies(first):
    train = tf1.assign_add(step, 1)
sv = procsv.Supervisor(summary_op=None, save_model_secs=1)
with sv.managed_session() as sess:
    while not sv.should_stop():
        sess.run(train)
        asleep.wait(0.02)
"""


def _preempt(logdir: Path, profile: str) -> dict[str, Any]:
    done = procsv("preempt", str(logdir), "--profile", profile, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["in_time"]
    assert said["killed"] == []
    return said


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_row_38_in_a_compile_that_does_not_end(procsv_launch: Launch, program: str) -> None:
    run = procsv_launch(program, "compile", options=["--grace", "8s"])
    run.wait_for("the compile", lambda: "compiling" in run.said())
    said = _preempt(run.logdir, "gcp-spot")
    assert run.wait_end() == 75
    assert said["saved_step"] == 0


def test_row_38_while_a_checkpoint_is_being_written_and_while_one_is_restored(
    procsv_launch: Launch, program: str
) -> None:
    slow_save = "checkpoint.before_rename=1*off->1*sleep(3)"
    run = procsv_launch(program, "steps", PROCSV_FAILPOINTS=slow_save)
    run.wait_event("checkpoint_durable")
    run.wait_for("files of a save", lambda: any((run.logdir / "procsv" / "staging").glob("*/*")) or run.step() > 80)
    said = _preempt(run.logdir, "k8s")
    assert run.wait_end() == 75
    ended = run.events("exited", "trainer")[-1]
    assert said["saved_step"] == ended["step"] > 0

    again = procsv_launch(program, "steps", PROCSV_FAILPOINTS="trainer.restore=1*sleep(3)")
    again.wait_for("the restore", lambda: again.status()["processes"] and _phase(again.status()) == "restore")
    said = _preempt(again.logdir, "slurm")
    assert again.wait_end() == 75
    assert said["saved_step"] >= ended["step"]
    assert said["lost_steps"] == 0


def _phase(status: dict[str, Any]) -> str:
    return next((str(one["phase"]) for one in status["processes"] if one["role"] == "trainer"), "")
