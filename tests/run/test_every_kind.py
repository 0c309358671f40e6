"""A restart gives every kind of variable its value back, bit for bit, from memory and from disk.

The default size suits test machines. PROCSV_TEST_SMALL=10000 and PROCSV_TEST_MB=4300 give the
promised size (one variable over 2**32 bytes, ten thousand little ones); that takes some 23 GB of
memory, PROCSV_TEST_DEADLINE=300, and minutes.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support import every_kind
from tests.support.launched import Launched, launched

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault

SMALL = int(os.environ.get("PROCSV_TEST_SMALL", "300"))
MB = int(os.environ.get("PROCSV_TEST_MB", "24"))
PROGRAM = str(Path(every_kind.__file__))


def _began(notes: Path) -> list[tuple[int, str]]:
    """Return the step and digest with which each session of the program started."""
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    return [(int(step), digest) for step, digest in lines]


def _options(notes: Path) -> tuple[str, ...]:
    return PROGRAM, "--notes", str(notes), "--small", str(SMALL), "--mb", str(MB)


def _stop(run: Launched) -> None:
    run.process.terminate()
    assert run.wait_end() == 75


@pytest.mark.long
def test_every_kind_of_variable_is_restored_bit_for_bit_from_memory_and_from_disk(tmp_path: Path) -> None:
    notes, logdir = tmp_path / "notes", tmp_path / "logdir"
    with launched(logdir, "--snapshot-secs", "0.3", *_options(notes)) as run:
        run.wait_event("recovered")
        run.wait_for("a snapshot of a later step", lambda: run.status()["memory_step"] > 3)
        run.kill("trainer")
        recovered = run.wait_event("recovered", 2)[1]
        run.wait_for("the second session", lambda: len(_began(notes)) == 2)
        run.wait_event("recovered", 2)
        _stop(run)
    with launched(logdir, *_options(notes)) as again:
        again.wait_event("recovered", 3)
        _stop(again)
    began = _began(notes)
    assert [event["source"] for event in again.events("recovered")] == ["fresh", "memory", "checkpoint"]
    assert [event["step"] for event in again.events("recovered")] == [step for step, _ in began]
    assert began[1][0] == recovered["step"] > 3

    with tf.Graph().as_default(), tf1.Session() as session:  # TensorFlow alone reads the same
        model = every_kind.Model(SMALL, MB)
        session.run(tf1.global_variables_initializer())
        for step, digest in began:
            _train_to(session, model, step)
            assert model.digest(session) == digest, f"step {step} is not what it was"
        newest = tf.train.latest_checkpoint(str(logdir))
        _train_to(session, model, int(newest.rpartition("-")[2]))
        last = model.digest(session)
    with tf.Graph().as_default(), tf1.Session() as session:
        model = every_kind.Model(SMALL, MB)
        model.saver.restore(session, newest)
        assert model.digest(session) == last


def _train_to(session: Any, model: every_kind.Model, step: int) -> None:
    while session.run(model.step) < step:
        session.run(model.train)
