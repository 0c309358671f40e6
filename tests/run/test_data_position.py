"""A program whose input position is part of its state trains on each element once and in order, killed or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import procsv
from procsv.base.errors import UserError
from tests.support.launched import launched

tf1 = tf.compat.v1
pytestmark = [pytest.mark.fault, pytest.mark.long]

TRAINING = """
import os, sys, time
import tensorflow as tf
import procsv

tf1 = tf.compat.v1
tf1.disable_eager_execution()
iterator = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(1 << 40).shuffle(50, seed=3).map(lambda x: 2 * x).batch(2))
procsv.keep_position(iterator)
batch = iterator.get_next()
digest = tf1.get_variable("digest", [], tf.int64, initializer=tf1.zeros_initializer())
step = tf1.train.get_or_create_global_step()
with tf1.control_dependencies([digest.assign(digest * 31 + batch[0] * 7 + batch[1])]):
    train = tf1.assign_add(step, 1)
flag = sys.argv[1]
with procsv.Supervisor(logdir=None, save_model_secs=1).managed_session() as session:
    while not os.path.exists(flag):
        session.run(train)
        time.sleep(0.002)  # a step as long as one that computes something
    print("trained", *session.run([step, digest]))
"""


def digest_of(steps: int) -> int:
    """Return the digest of an undisturbed training of that many steps."""
    digest = 0
    with tf.Graph().as_default(), tf1.Session() as session:
        data = tf1.data.Dataset.range(1 << 40).shuffle(50, seed=3).map(lambda x: 2 * x).batch(2)
        batch = tf1.data.make_one_shot_iterator(data).get_next()
        for _ in range(steps):
            first, second = session.run(batch)
            digest = (digest * 31 + int(first) * 7 + int(second)) % 2**64
    return digest if digest < 2**63 else digest - 2**64


def test_a_shuffled_pipeline_continues_with_the_very_next_element_after_a_kill_and_after_a_stop(tmp_path: Path) -> None:
    program, flag = tmp_path / "train.py", tmp_path / "flag"
    program.write_text(TRAINING)
    with launched(tmp_path / "logdir", str(program), str(flag)) as run:
        run.wait_for("a checkpoint", lambda: run.wait_event("checkpoint_durable")[-1]["step"] > 3)
        run.kill("trainer")
        resumed = run.wait_event("recovered", 2)[1]["step"]
        assert resumed > 3
        assert f"from step {resumed}" in run.said()  # as announced before
        run.wait_event("recovered", 2)
        run.kill("watchdog", 15)
        assert run.wait_end() == 75
    with launched(tmp_path / "logdir", str(program), str(flag)) as run:
        assert run.wait_event("recovered", 3)[2]["source"] == "checkpoint"
        flag.touch()
        assert run.wait_end() == 0, run.said()
        steps, digest = next(line.split()[1:] for line in run.said().splitlines() if line.startswith("trained "))
    assert int(digest) == digest_of(int(steps))


def test_an_iterator_that_the_session_would_restart_is_refused_with_what_to_do() -> None:
    with tf.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(tf1.data.Dataset.range(10))
        with pytest.raises(UserError, match="make_one_shot_iterator"):
            procsv.keep_position(iterator)
