"""A program that knows only TensorFlow, with a MonitoredTrainingSession and its hooks, killed again and again."""

import itertools
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.launched import Launched, environment, launched, procsv

pytestmark = pytest.mark.fault
tf1 = tf.compat.v1

KILLS, SEED, STEPS = 3, 5, 6000

PROGRAM = """
import hashlib, sys
import tensorflow.compat.v1 as tf
from tensorflow.python.training.basic_session_run_hooks import SummarySaverHook

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)
logdir, last_step = sys.argv[1], int(sys.argv[2])


class Decay(tf.train.SessionRunHook):
    "Changes the model after each step, by a run of its own, and says at the end what has become of it."

    def begin(self):
        self.decay = tf.assign(rate, 0.999 * rate + 0.0001)

    def after_run(self, run_context, run_values):
        run_context.session.run(self.decay)

    def end(self, session):
        values = session.run(tf.global_variables())
        print("digest", hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16], flush=True)


step = tf.train.get_or_create_global_step()
weights = tf.get_variable("weights", [200], initializer=tf.ones_initializer())
rate = tf.get_variable("rate", [], initializer=tf.ones_initializer(), trainable=False)
inputs = tf.random.stateless_uniform([200], seed=tf.stack([tf.cast(step, tf.int32), 7]))
loss = tf.reduce_mean(tf.square(weights * inputs - 0.5))
gradient = tf.gradients(loss, [weights])[0]
with tf.control_dependencies([gradient, loss]):
    update = tf.assign_sub(weights, 0.1 * rate * gradient)
with tf.control_dependencies([update]):
    train = tf.assign_add(step, 1).op
tf.summary.scalar("loss", loss)
hooks = [
    tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=1000),
    tf.train.StopAtStepHook(last_step=last_step),
    tf.train.NanTensorHook(loss),
    SummarySaverHook(save_steps=50, output_dir=logdir, summary_op=tf.summary.merge_all()),
    Decay(),
]
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=logdir, hooks=hooks, save_checkpoint_steps=500, save_summaries_steps=None
) as session:
    while not session.should_stop():
        session.run(train)
"""


def _digest(said: str) -> str:
    found = re.findall(r"digest ([0-9a-f]{16})", said)
    assert found, said[-3000:]
    return str(found[-1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def undisturbed(program: Path) -> str:
    """What TensorFlow alone makes of it."""
    done = subprocess.run(
        [sys.executable, str(program), str(program.parent / "logdir"), str(STEPS)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return _digest(done.stdout)


def test_kills_and_a_preemption_change_no_bit_of_a_monitored_training(
    tmp_path: Path, program: Path, undisturbed: str
) -> None:
    rng, pause, logdir = random.Random(SEED), threading.Event(), tmp_path / "logdir"
    command = ["--drop-in", "--snapshot-secs", "0.2", "--backoff", "0.1s..1s", str(program), str(logdir), str(STEPS)]
    with launched(logdir, *command) as run:
        for kill in range(1, KILLS + 1):
            run.wait_event("ready", kill)
            pause.wait(rng.uniform(0.0, 0.6))  # at a random moment of the training
            run.kill("trainer")
            run.wait_event("exited", kill)
        run.wait_event("ready", KILLS + 1)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == 75
    recoveries = [e for e in run.events("recovered") if e["role"] == "trainer"]
    assert {e["source"] for e in recoveries[1:]} <= {"memory", "checkpoint"}
    assert "memory" in {e["source"] for e in recoveries}
    with launched(logdir, *command) as run:
        assert run.wait_end() == 0
    assert _digest(run.said()) == undisturbed
    _check_files(run)


def _check_files(run: Launched) -> None:
    """Every checkpoint that was announced is whole, the last is the end, and no event's step goes back unmarked."""
    latest = tf1.train.latest_checkpoint(str(run.logdir))
    assert latest.endswith(f"model.ckpt-{STEPS}")
    assert procsv("checkpoints", str(run.logdir), "--verify").returncode == 0
    for path in run.logdir.glob("events.out*"):
        events = [e for e in tf1.train.summary_iterator(str(path)) if e.HasField("summary")]
        steps = [e.step for e in events if e.summary.value[0].tag == "loss"]
        assert all(one < other for one, other in itertools.pairwise(steps))
