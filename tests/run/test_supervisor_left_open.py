"""A program that never ends its Supervisor has its last state saved, and the last reported step is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

STEPS = 300
PROGRAM = f"""
import os, sys
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
sv = tf1.train.Supervisor(summary_op=None)


def loop(session):
    while session.run(train) < {STEPS}:
        pass


"""
ENDS = {
    "its main thread returns": "session = sv.prepare_or_wait_for_session()\nloop(session)\n",
    "it closes the session": "with sv.prepare_or_wait_for_session() as session:\n    loop(session)\n",
    # Its main thread returns first, and a fork of it reaches the end as well.
    "another thread trains": "import threading\nsession = sv.prepare_or_wait_for_session()\n"
    "threading.Thread(target=loop, args=[session]).start()\nos.fork()\n",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_never_closes_its_supervisor_loses_no_step(tmp_path: Path, end: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM + ENDS[end])
    with launched(tmp_path / "logdir", "--drop-in", "--snapshot-secs", "600", str(program)) as run:
        assert run.wait_end() == 0
    assert run.events("checkpoint_durable")[-1]["step"] == STEPS
    assert run.events("run_completed")[0]["step"] == STEPS
    assert json.loads((run.logdir / "procsv" / "run.json").read_text())["durable_step"] == STEPS
