"""A step that takes two calls ends with the right state if the program does as the tutorial says.

Without that, a snapshot between the two calls makes a restarted program train the first one twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

STEPS, KILLED_STEP, MODULUS = 9, 5, 1_000_003
MODEL = f"""
import os, pathlib, signal, time
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
tf1.disable_eager_execution()

def number(name):
    return tf1.get_variable(name, [], tf.int64, initializer=tf1.zeros_initializer(), trainable=False)

def train(variable, value, steps):
    with tf.control_dependencies([tf1.assign(variable, tf.math.floormod(value, {MODULUS}))]):
        return tf1.assign_add(steps, 1).op

global_step, d_steps, d, g = tf1.train.get_or_create_global_step(), number("d_steps"), number("d"), number("g")
fed = tf1.placeholder(tf.int64, [])
train_d, train_g = train(d, 3 * d + g + fed, d_steps), train(g, 5 * g + d + 1, global_step)
killed = pathlib.Path(__file__).with_name("killed")

def is_to_die(step):
    return step == {KILLED_STEP} and not killed.exists()

def die():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
# It dies once a snapshot has been captured between the two calls of a step.
LOOP = """
from procsv.training.snapshots.training_run import training_of
sv = procsv.Supervisor()
with sv.managed_session() as session:
    print("begins at", *session.run([global_step, d_steps]), flush=True)
    while not sv.should_stop():
        step, d_done = session.run([global_step, d_steps])
        if step >= {steps}:
            break
        if {is_needed}:
            session.run(train_d, {{fed: step}})
        if is_to_die(step):
            taken = training_of(sv).snapshots._cadence.taken
            while training_of(sv).snapshots._cadence.taken < taken + 2:  # the first may be older than the call
                time.sleep(0.01)
            die()
        session.run(train_g)
    print("ends with", *session.run([d, g]), flush=True)
"""
# It dies in the step function, long after a snapshot was due.
STEP_FUNCTION = f"""
with procsv.MonitoredTrainingSession() as session:
    print("begins at", *session.run([global_step, d_steps]), flush=True)
    while (step := session.run(global_step)) < {STEPS}:
        def train_step(step_context):
            step_context.session.run(train_d, {{fed: step}})
            if is_to_die(step):
                time.sleep(2.0)
                die()
            step_context.run_with_hooks(train_g)
        session.run_step_fn(train_step)
    print("ends with", *session.run([d, g]), flush=True)
"""


def trained(d_twice: int | None = None) -> tuple[int, int]:
    """Return `d` and `g` after all steps. At step `d_twice`, train `d` twice."""
    d = g = 0
    for step in range(STEPS):
        for _ in range(2 if step == d_twice else 1):
            d = (3 * d + g + step) % MODULUS
        g = (5 * g + d + 1) % MODULUS
    return d, g


@pytest.mark.parametrize(
    ("loop", "resumed", "expected"),
    [
        pytest.param(LOOP.format(steps=STEPS, is_needed="d_done == step"), (5, 6), trained(), id="counter"),
        pytest.param(LOOP.format(steps=STEPS, is_needed="True"), (5, 6), trained(d_twice=5), id="neither"),
        pytest.param(STEP_FUNCTION, None, trained(), id="step function"),
    ],
)
def test_only_a_counter_or_a_step_function_keeps_a_step_of_two_calls_whole(
    tmp_path: Path, loop: str, resumed: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    (tmp_path / "train.py").write_text(MODEL + loop)
    options = ("--snapshot-secs", "0.05", "--backoff", "0..0")
    with launched(tmp_path / "logdir", *options, str(tmp_path / "train.py")) as run:
        run.assert_completed()
    said = run.said()
    first, again = (tuple(map(int, found)) for found in re.findall(r"^begins at (\d+) (\d+)$", said, re.MULTILINE))
    assert first == (0, 0)
    assert again == resumed if resumed else again[0] == again[1], "where the killed step began"
    assert tuple(map(int, re.findall(r"^ends with (\d+) (\d+)$", said, re.MULTILINE)[-1])) == expected
