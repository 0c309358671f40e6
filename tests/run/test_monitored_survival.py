"""A drill of a program that uses only TensorFlow's MonitoredTrainingSession and hooks."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.launched import environment, procsv

pytestmark = [pytest.mark.fault, pytest.mark.long]
tf1 = tf.compat.v1

STEPS = 2500
FAULTS = 8  # of the default plan
QUICK = 'backoff = "0.1s..1s"\nstandby = "off"\n'  # for launch: delays and standbys have their own tests

PROGRAM = """
import hashlib, os, sys, threading
import tensorflow.compat.v1 as tf
from tensorflow.python.training.basic_session_run_hooks import SummarySaverHook

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)
logdir, last_step, faults = os.environ["PROCSV_LOGDIR"], int(sys.argv[1]), int(sys.argv[2])
is_drilled = os.path.basename(logdir) == "drilled"


def count_faults():
    with open(os.path.join(logdir, "procsv", "journal.jsonl")) as journal:
        return sum('"event":"fault"' in line for line in journal)


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
        _, at = session.run([train, step])
        threading.Event().wait(0.002)
        while is_drilled and at >= last_step - 300 and count_faults() < faults:  # the watchdog looks twice a second
            threading.Event().wait(0.02)
"""


def _digest(said: str) -> str:
    found = re.findall(r"digest ([0-9a-f]{16})", said)
    assert found, said[-3000:]
    return str(found[-1])


def test_a_drill_of_every_kind_of_fault_changes_no_bit_of_a_monitored_training(tmp_path: Path) -> None:
    program, config, alone, drill = (tmp_path / name for name in ("train.py", "quick.toml", "alone", "drill"))
    args = (str(STEPS), str(FAULTS))
    program.write_text(PROGRAM)
    config.write_text(QUICK)
    undisturbed = subprocess.Popen(  # the result of TensorFlow alone; meanwhile the drill begins
        [sys.executable, str(program), *args],
        env=environment(PROCSV_LOGDIR=str(alone)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        options = ("--drop-in", "--logdir", str(drill), "--snapshot-secs", "0.2", "--config", str(config), "--json")
        done = procsv("drill", *options, str(program), *args, timeout_s=500)
        expected = _digest(undisturbed.communicate(timeout=300)[0])
    finally:
        undisturbed.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["held"]
    assert said["variables"] == "identical"
    assert said["not_happened"] == []
    assert len(said["faults"]) == FAULTS
    assert "memory" in {one["source"] for one in said["faults"]}
    for trial in ("baseline", "drilled"):
        assert _digest((drill / f"{trial}.out").read_text()) == expected, trial
    _check_files(drill / "drilled")


def _check_files(logdir: Path) -> None:
    """Check that every announced checkpoint is whole, the last one is the end, and no event goes
    backwards unmarked.
    """
    latest = tf1.train.latest_checkpoint(str(logdir))
    assert latest.endswith(f"model.ckpt-{STEPS}")
    assert procsv("checkpoints", str(logdir), "--verify").returncode == 0
    for path in logdir.glob("events.out*"):
        events = [e for e in tf1.train.summary_iterator(str(path)) if e.HasField("summary")]
        steps = [e.step for e in events if e.summary.value[0].tag == "loss"]
        assert all(one < other for one, other in itertools.pairwise(steps))
