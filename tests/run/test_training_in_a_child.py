"""A program that trains in a child process is saved where it asks, and procsv says that it will not restart it."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths
from tests.support.journal import read_journal
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = """
import json, multiprocessing, os, signal, sys
import tensorflow as tf
tf1 = tf.compat.v1


def has_snapshot(logdir):
    with open(os.path.join(logdir, "procsv", "run.json")) as file:
        return json.load(file)["memory_step"] > 0


def train(logdir, is_first):
    tf1.disable_eager_execution()
    step = tf1.train.get_or_create_global_step()
    add = tf1.assign_add(step, 1)
    sv = tf1.train.Supervisor(logdir=logdir, summary_op=None)
    with sv.managed_session() as session:
        print("goes on from", session.run(step), flush=True)
        while (now := session.run(add)) < 200:
            sv.coord.wait_for_stop(0.02)
            while is_first and now == 150:
                if has_snapshot(logdir):  # of more than the first state: when the second one is due follows from what that cost
                    os.kill(os.getpid(), signal.SIGKILL)
                sv.coord.wait_for_stop(0.02)
    print("ended at", now, flush=True)


child = multiprocessing.get_context("fork").Process(target=train, args=(sys.argv[1], not os.path.exists(sys.argv[1])))
child.start()
child.join()
"""


def test_a_child_that_trains_resumes_at_the_next_launch_and_the_user_learns_that_it_is_not_restarted(
    tmp_path: Path,
) -> None:
    """Its training is saved before the first launch ends, however long that takes."""
    program, logdir = tmp_path / "train.py", tmp_path / "mine"
    program.write_text(PROGRAM)
    command = ("--drop-in", "--standby", "off", str(program), str(logdir))
    slow = (
        "checkpoint.before_rename=1*off->1*sleep(3)"  # the second save, of the state in memory when the child is killed
    )
    with launched(tmp_path / "run", *command, PROCSV_FAILPOINTS=slow) as run:
        assert run.wait_end() == 0
    said = run.said()
    assert "left running" not in said
    saved = [line for line in read_journal(find_paths(logdir).journal) if line["event"] == "checkpoint_durable"]
    assert [line["reason"] for line in saved] == ["start", "crash"]
    assert saved[-1]["step"] > 0
    assert "goes on from 0" in said
    assert "ended at" not in said
    assert " child process" in said
    with launched(tmp_path / "run", *command) as run:
        assert run.wait_end() == 0
    later = run.said().removeprefix(said)
    (begun,) = [int(line.split()[-1]) for line in later.splitlines() if line.startswith("goes on from")]
    assert 0 < begun <= 150
    assert "ended at 200" in later
