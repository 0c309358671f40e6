"""A notice in the middle of any activity saves the state at once and never torn."""

import os
import signal
from pathlib import Path

import pytest
import tensorflow as tf

from procsv.testing import Launch
from procsv.training.graph.saver_ops import is_harmless

tf1 = tf.compat.v1


@pytest.fixture
def graph() -> tf.Graph:
    return tf.Graph()


@pytest.mark.parametrize("use_resource", [True, False])
def test_reading_is_harmless_and_writing_is_not(graph: tf.Graph, use_resource: bool) -> None:
    with graph.as_default():
        kept = tf1.get_variable("kept", [4], use_resource=use_resource)
        local = tf1.get_variable("local", [4], use_resource=use_resource)
        loss = tf.reduce_sum(kept * 2.0)
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[kept])
        with tf.control_dependencies([train]):
            behind = tf.constant(1.0)
        aside = tf1.assign(local, kept)
        saved = [kept.value() if use_resource else kept._ref()]
        embedding = tf.nn.embedding_lookup(kept, [1, 2])

        for fetches in (loss, {"a": [loss, embedding]}, "kept:0" if not use_resource else loss.name, aside, kept):
            assert is_harmless(graph, fetches, saved), fetches
        for fetches in (train, [loss, train], behind, tf1.assign_add(kept, [1.0] * 4), kept.initializer):
            assert not is_harmless(graph, fetches, saved), fetches


def test_an_op_not_known_to_read_counts_as_writing(graph: tf.Graph) -> None:
    with graph.as_default():
        kept = tf1.get_variable("kept", [], use_resource=True)

        @tf.function  # type: ignore[untyped-decorator]  # tensorflow is untyped
        def opaque() -> tf.Tensor:
            return kept + 1.0

        called = opaque()
        iterator = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        assert not is_harmless(graph, called, [kept.value()])
        assert is_harmless(graph, iterator, [kept.value()])
        assert not is_harmless(graph, object(), [kept.value()])
        assert not is_harmless(graph, None, [iterator])


PROGRAM = """
import os, sys, threading
import numpy as np
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
weights = tf1.get_variable("weights", [1000], initializer=tf1.zeros_initializer(), use_resource=sys.argv[1] == "resource")
with tf.control_dependencies([tf1.assign_add(weights, tf.ones([1000]))]):
    train = tf1.assign_add(step, 1)
asleep = threading.Event()

def wait(value=None):
    print("long", flush=True)
    while not os.path.exists(sys.argv[3]):  # until the test says so
        asleep.wait(0.02)
    return value

evaluation = tf1.numpy_function(wait, [tf.reduce_sum(weights)], tf.float32)
sv = procsv.Supervisor(summary_op=None, save_model_secs=600)
with sv.managed_session() as sess:
    while not sv.should_stop():
        reached = sess.run(train)
        if reached == 40:
            sess.run(evaluation) if sys.argv[2] == "session" else wait()
"""


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.parametrize(("kind", "where"), [("resource", "session"), ("ref", "session"), ("resource", "python")])
def test_a_notice_in_a_long_evaluation_costs_no_step(
    procsv_launch: Launch, tmp_path: Path, kind: str, where: str
) -> None:
    """No snapshot is due for minutes and no boundary comes: the state is captured beside the evaluation."""
    program, is_saved = tmp_path / "evaluates.py", tmp_path / "is_saved"
    program.write_text(PROGRAM)
    options = ["--snapshot-secs", "600", "--grace", "60s", "--standby", "off"]
    run = procsv_launch(str(program), kind, where, str(is_saved), options=options)
    run.wait_for("the evaluation", lambda: "long" in run.said().splitlines())
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait_for("its state", lambda: 40 in [entry["step"] for entry in run.events("checkpoint_durable")])
    is_saved.touch()
    assert run.wait_end() == 75
    assert run.events("checkpoint_durable")[-1]["step"] == 40
    weights = tf.train.load_checkpoint(str(run.logdir)).get_tensor("weights")
    assert set(weights.tolist()) == {40.0}


SLOW_COPY = """
import tensorflow as tf
import procsv
from procsv.base.system import failpoints
tf1 = tf.compat.v1
tf1.disable_eager_execution()
train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
sv = procsv.Supervisor(summary_op=None, save_model_secs=600)
with sv.managed_session() as sess:
    while not sv.should_stop():
        sess.run(train)
        print("trained", flush=True)
    failpoints.arm("trainer.copy=sleep(3.0)")  # as long as some gigabytes would take
"""


@pytest.mark.long
@pytest.mark.fault
def test_a_last_state_that_is_slow_to_copy_is_taken_and_written_once(procsv_launch: Launch, tmp_path: Path) -> None:
    """No call runs for seconds, and a stop would save the state: the session's end is already saving it."""
    program = tmp_path / "slow.py"
    program.write_text(SLOW_COPY)
    run = procsv_launch(str(program), options=["--snapshot-secs", "600", "--grace", "60s", "--standby", "off"])
    run.wait_for("training", lambda: "trained" in run.said())
    run.process.terminate()
    assert run.wait_end() == 75
    steps = [entry["step"] for entry in run.events("checkpoint_durable")]
    assert steps == [0, run.events("stopped")[0]["step"]]
