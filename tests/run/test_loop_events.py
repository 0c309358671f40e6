"""Each tf.summary point of a custom loop is in the event files once, though its trainer was killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.launched import Launched, launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

STEPS = 120
KILLS = (40, 80)  # the steps that have been made then; an attempt stands a little later until it is killed
PROGRAM = f"""
import os, sys, time
import tensorflow as tf
from tests.support.standing import stand

WAY, LOGDIR = sys.argv[1], sys.argv[2]
stands_at = dict(enumerate({KILLS}, 1)).get(int(os.environ["PROCSV_INCARNATION"]), {STEPS}) + 20
step = tf.Variable(0, dtype=tf.int64)
state = tf.train.Checkpoint(step=step)
if WAY == "early":
    writer = tf.summary.create_file_writer(LOGDIR + "/tb", max_queue=1000)  # procsv flushes it with each snapshot
if WAY == "unchanged":
    manager = tf.train.CheckpointManager(state, LOGDIR + "/saved", max_to_keep=2)
    state.restore(manager.latest_checkpoint)
else:
    import procsv
    manager = procsv.CheckpointManager(state, LOGDIR + "/saved", max_to_keep=2)
    manager.restore_or_initialize()
if WAY != "early":
    writer = tf.summary.create_file_writer(LOGDIR + "/tb")
print("begins at", int(step), flush=True)


writer.set_as_default()  # a block of `with writer.as_default()` would flush it at its end


@tf.function
def record(step):
    tf.summary.scalar("loss", tf.cast(step, tf.float32), step=step)


while step < {STEPS}:
    step.assign_add(1)
    record(step)
    if WAY == "late" and int(step) % 7 == 0:
        writer.flush()
    time.sleep(0.02)
    if WAY != "unchanged":
        manager.step()
    elif int(step) % 10 == 0:
        manager.save()
    if int(step) % 10 == 0:
        print("step", int(step), flush=True)
    if step >= stands_at:
        stand()
"""


def raw_steps(directory: Path) -> list[int]:
    """Return the steps as a program finds them that reads the files one after the other."""
    events = (event for path in sorted(directory.iterdir()) for event in tf.compat.v1.train.summary_iterator(str(path)))
    return [event.step for event in events for value in event.summary.value if value.tag == "loss"]


def shown_steps(directory: Path) -> list[int]:
    """Return the steps as TensorBoard shows them."""
    shown = EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()
    return [event.step for event in shown.Tensors("loss")]


def said_steps(run: Launched) -> list[int]:
    return [int(line.split()[1]) for line in run.said().splitlines() if line.startswith("step ")]


def wait_step(run: Launched, step: int) -> None:
    run.wait_for(f"step {step}", lambda: step in said_steps(run))


@pytest.mark.parametrize("way", ["early", "late", "unchanged"])
def test_a_loop_that_was_killed_twice_has_each_point_in_its_event_files_once(way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    logdir = tmp_path / "run"
    options = ("--drop-in",) if way == "unchanged" else ("--snapshot-secs", "0.3")
    program = (str(tmp_path / "train.py"), way, str(logdir))
    with launched(logdir, *options, "--backoff", "0.1s..1s", *program) as run:
        for count, step in enumerate(KILLS, 1):
            wait_step(run, step)
            run.kill("trainer")
            run.wait_event("restarting", count)
        run.assert_completed()
    wanted = list(range(1, STEPS + 1))
    assert [step for step, count in Counter(raw_steps(logdir / "tb")).items() if count > 1] == []
    assert raw_steps(logdir / "tb") == wanted
    assert shown_steps(logdir / "tb") == wanted
    assert len(run.events("recovered")) == 3


EVALUATED = """
import os, signal, sys
import tensorflow as tf
import procsv

logdir = sys.argv[1]
step = tf.Variable(0, dtype=tf.int64)
manager = procsv.CheckpointManager(tf.train.Checkpoint(step=step), logdir, step_counter=step)
manager.restore_or_initialize()
writers = [tf.summary.create_file_writer(f"{logdir}/part{part}") for part in range(20)]
while step < 40:
    step.assign_add(1)
    for writer in writers:
        with writer.as_default(int(step)):
            tf.summary.scalar("loss", 1.0)
    if step % 10 == 0:
        evaluation = tf.summary.create_file_writer(f"{logdir}/eval")
        with evaluation.as_default(int(step)):
            tf.summary.scalar("loss", 1.0)
        if os.environ["PROCSV_INCARNATION"] == "1":
            evaluation.close()
            del evaluation
        manager.save()
    manager.step()
    if step == 25 and os.environ["PROCSV_INCARNATION"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_points_from_before_the_resumed_state_stay_in_the_files_that_it_does_not_list(tmp_path: Path) -> None:
    """A writer may be closed before the snapshot, or be the seventeenth."""
    program, logdir = tmp_path / "train.py", tmp_path / "run"
    program.write_text(EVALUATED)
    with launched(logdir, "--snapshot-secs", "0", str(program), str(logdir)) as run:
        run.assert_completed()
    (_, recovered) = run.events("recovered")
    assert (recovered["source"], recovered["step"]) == ("memory", 20)
    assert Counter(raw_steps(logdir / "eval")) == Counter([10, 20, 30, 40])
    for part in range(20):
        assert set(raw_steps(logdir / f"part{part}")) == set(range(1, 41)), part
