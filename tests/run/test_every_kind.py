"""Whatever a variable is like, what a restart gives it is what it was, bit for bit: from memory, and from disk.

The size is for a machine that tests. PROCSV_TEST_SMALL=10000 and PROCSV_TEST_MB=4300 are the sizes of the promise (one
variable over 2**32 bytes, ten thousand little ones); they take some 20 GB of memory and ten minutes.
"""

import os
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support import every_kind
from tests.support.launched import Launched, launched

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault

SMALL = int(os.environ.get("PROCSV_TEST_SMALL", "300"))
MB = int(os.environ.get("PROCSV_TEST_MB", "24"))
PROGRAM = str(Path(every_kind.__file__))


def _notes(path: Path, word: str) -> list[tuple[int, str]]:
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), digest) for kind, step, digest in lines if kind == word]


def _options(notes: Path) -> tuple[str, ...]:
    return PROGRAM, "--notes", str(notes), "--small", str(SMALL), "--mb", str(MB)


def _stop(run: Launched) -> None:
    run.process.terminate()
    assert run.wait_end() == 75


def test_every_kind_of_variable_is_restored_bit_for_bit_from_memory_and_from_disk(tmp_path: Path) -> None:
    notes, logdir = tmp_path / "notes", tmp_path / "logdir"
    with launched(logdir, "--snapshot-secs", "0.3", *_options(notes)) as run:
        run.wait_event("ready")
        run.wait_for("a snapshot of a later step", lambda: run.status()["memory_step"] > 3)
        run.kill("trainer")
        recovered = run.wait_event("recovered", 2)[1]
        run.wait_for("the second session", lambda: len(_notes(notes, "began")) == 2)
        run.wait_event("ready", 2)
        _stop(run)
    assert recovered["source"] == "memory"
    _, (step, digest) = _notes(notes, "began")
    assert step == recovered["step"] > 3

    last = _notes(notes, "step")[-1]
    with launched(logdir, *_options(notes)) as again:
        again.wait_event("ready", 3)
        _stop(again)
    assert again.events("recovered")[2]["source"] == "checkpoint"
    assert _notes(notes, "began")[2] == last

    with tf.Graph().as_default(), tf1.Session() as session:  # TensorFlow alone comes to the same, and reads it so
        model = every_kind.Model(SMALL, MB)
        session.run(tf1.global_variables_initializer())
        for _ in range(step):
            session.run(model.train)
        assert model.digest(session) == digest
        model.saver.restore(session, tf.train.latest_checkpoint(str(logdir)))
        assert (int(session.run(model.step)), model.digest(session)) == _notes(notes, "step")[-1]
