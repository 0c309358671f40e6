"""With save_model_secs=0 a program that saves by itself is as safe as any other, and procsv writes
no periodic files.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = """
import os, sys, time
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
sv = tf1.train.Supervisor(save_model_secs=0, summary_op=None)
with sv.managed_session() as session:
    while not sv.should_stop() and not os.path.exists(sys.argv[1]):
        session.run(train)
        time.sleep(0.02)
"""


def test_with_save_model_secs_0_procsv_takes_snapshots_and_saves_only_at_a_crash_a_notice_and_the_end(
    tmp_path: Path,
) -> None:
    program, done = tmp_path / "train.py", tmp_path / "done"
    program.write_text(PROGRAM)
    options = ("--drop-in", "--snapshot-secs", "0.2", str(program), str(done))
    with launched(tmp_path / "logdir", *options) as run:
        run.wait_for("a snapshot", lambda: run.status()["memory_step"] >= 20)
        assert not list(run.logdir.glob("model.ckpt*"))
        assert run.status()["protected"] is True
        run.kill("trainer")
        _, recovered = run.wait_event("recovered", 2)
        assert (recovered["source"], recovered["step"] >= 20) == ("memory", True)
        run.wait_event("checkpoint_durable")  # otherwise the notice's may come first and replace it
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_end() == 75
        stopped = run.events("stopped")[0]
        assert stopped["durable_step"] == stopped["step"] > recovered["step"]
        assert f"step {stopped['step']} is on disk" in run.said()
    with launched(tmp_path / "logdir", *options) as run:
        recovered = run.wait_event("recovered", 3)[2]
        assert recovered["step"] == stopped["step"]
        run.wait_step(recovered["step"] + 20)
        done.touch()
        assert run.wait_end() == 0
    saved = run.events("checkpoint_durable")
    assert [entry["reason"] for entry in saved] == ["crash", "preempt", "final"]
    assert saved[-1]["step"] == run.events("run_completed")[0]["step"]
    assert json.loads((run.logdir / "procsv" / "run.json").read_text())["protected"] is True
