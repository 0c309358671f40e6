"""TensorBoard shows the attempts of a program that was killed twice as marks in its event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.util import tensor_util

from procsv.base.identity import TRAINER
from procsv.testing.run import Run
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

STEPS = 120
# A program waits at step 79 and before its end until the test has seen the restart, so each kill hits a program at work.
# The first call of a process returns, because the test sees a restart by its first step.
PACE = f"""
import os, sys, time
from tests.support.standing import stand
calls = []
def pace(step):
    time.sleep(0.02)
    calls.append(step)
    for kill, last in ((1, {STEPS * 2 // 3 - 1}), (2, {STEPS - 1})):
        if step == last and len(calls) > 1:
            stand(lambda: os.path.exists(f"{{sys.argv[1]}}.restarted{{kill}}"))
"""
SUPERVISOR = f"""{PACE}
import procsv
import tensorflow as tf
tf1 = tf.compat.v1
with tf.Graph().as_default():
    train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
    supervisor = procsv.Supervisor(logdir=sys.argv[1], summary_op=None, save_summaries_secs=1)
    with supervisor.managed_session() as session:
        step = 0
        while step < {STEPS}:
            pace(step)
            step = session.run(train)
            loss = tf1.Summary.Value(tag="loss", simple_value=step)
            supervisor.summary_writer.add_summary(tf1.Summary(value=[loss]), step)
"""
MONITORED = f"""{PACE}
import procsv
import tensorflow as tf
tf1 = tf.compat.v1
with tf.Graph().as_default():
    step = tf1.train.get_or_create_global_step()
    tf1.summary.scalar("loss", step)
    train = tf1.assign_add(step, 1)
    hooks = [tf1.train.StopAtStepHook(last_step={STEPS})]
    with procsv.MonitoredTrainingSession(
        checkpoint_dir=sys.argv[1], hooks=hooks, save_summaries_steps=1, save_checkpoint_secs=1
    ) as session:
        done = 0
        while not session.should_stop():
            pace(done)
            done = session.run(train)
"""
LOOP = f"""{PACE}
import procsv
import tensorflow as tf
step = tf.Variable(0, dtype=tf.int64)
manager = procsv.CheckpointManager(tf.train.Checkpoint(step=step), sys.argv[1] + "/saved", max_to_keep=2)
manager.restore_or_initialize()
tf.summary.create_file_writer(sys.argv[1]).set_as_default()
while step < {STEPS}:
    pace(int(step))
    step.assign_add(1)
    tf.summary.scalar("loss", tf.cast(step, tf.float32), step=step)
    manager.step()
"""
FIT = f"""{PACE}
import keras
import numpy as np
import procsv
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: pace(batch))
shown = keras.callbacks.TensorBoard(sys.argv[1], update_freq=1, write_graph=False)
x = np.ones(({STEPS}, 1), np.float32)
backup = procsv.keras.BackupAndRestore(sys.argv[1] + "/backup")
model.fit(x, x, batch_size=1, epochs=1, callbacks=[shown, slow, backup], verbose=0)
"""


def read(shown: EventMultiplexer, run: str, tag: str) -> list[tuple[int, Any]]:
    return [(one.step, tensor_util.make_ndarray(one.tensor_proto).item()) for one in shown.Tensors(run, tag)]


def train_through_kills(program: str, logdir: Path) -> Run:
    (logdir.parent / "train.py").write_text(program)
    options = ("--snapshot-secs", "0.1", "--backoff", "0.1s..1s")
    with launched(logdir, *options, str(logdir.parent / "train.py"), str(logdir)) as run:
        for count, step in ((1, STEPS // 3), (2, STEPS * 2 // 3)):
            run.wait_step(step)
            run.kill("trainer")
            run.wait_event("recovered", count + 1)
            Path(f"{logdir}.restarted{count}").touch()
        run.assert_completed()
    return run


@pytest.mark.parametrize(
    ("program", "folder", "loss"),
    [
        (SUPERVISOR, ".", "loss"),
        (MONITORED, ".", "loss"),
        (LOOP, ".", "loss"),
        (FIT, "train", "batch_loss"),
    ],
    ids=["supervisor", "monitored", "loop", "fit"],
)
def test_tensorboard_shows_each_attempt_and_end_once_and_all_other_points_unchanged(
    program: str, folder: str, loss: str, tmp_path: Path
) -> None:
    logdir = tmp_path / "run"
    run = train_through_kills(program, logdir)
    shown = EventMultiplexer().AddRunsFromDirectory(str(logdir)).Reload()
    began = [max(line["step"], 0) for line in run.events("recovered", str(TRAINER))]
    # An attempt that saved nothing leaves its step to the next one.
    attempts = {step: number for number, step in enumerate(began, 1)}
    assert read(shown, folder, "procsv/attempt") == list(attempts.items())
    told = read(shown, folder, "procsv/ends")
    assert [step for step, _ in told] == [step for step in attempts if step > 0]
    ends = [line for _, text in told for line in text.decode().splitlines()]
    assert [line.split(" ended at step ")[0] for line in ends] == ["attempt 1", "attempt 2"]
    assert all("SIGKILL" in line for line in ends)
    steps = [step for step, _ in read(shown, folder, loss)]
    assert steps == sorted(set(steps))
    assert steps[-1] >= STEPS - 1
    # A START record voids the point of its own step, and a session does not write that again.
    assert set(range(steps[0], steps[-1])) - set(steps) <= set(began[1:])
    own = {tag for tag in shown.Runs()[folder]["tensors"] if tag.startswith("procsv/")}
    assert {"procsv/attempt", "procsv/ends"} <= own
    plugins = {tag: shown.SummaryMetadata(folder, tag).plugin_data.plugin_name for tag in own}
    assert plugins.pop("procsv/ends") == "text"
    assert set(plugins.values()) == {"scalars"}
    assert all(shown.SummaryMetadata(folder, tag).summary_description for tag in own)
    layout = shown.SummaryMetadata("procsv", "custom_scalars__config__")
    assert layout.plugin_data.plugin_name == "custom_scalars"
