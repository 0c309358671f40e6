"""The summary service computes summaries without disturbing the training."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, said, wait_for

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def test_a_summary_that_needs_a_feed_does_not_end_the_training(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    fed = tf1.placeholder(tf.float32, [])
    tf1.summary.scalar("fed", fed)
    train = tf.group(model.train, tf1.assign_add(model.value, fed))
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.05, save_model_secs=0)

    def train_fed() -> None:
        with supervisor.managed_session() as session:
            wait_for(lambda: _run_fed(session))

    def _run_fed(session: Any) -> bool:
        if supervisor.should_stop():
            return True
        session.run(train, {fed: 5.0})
        supervisor.summary_writer.flush()
        return "value" in map(said, events(tmp_path))

    if kind.differs("summaries that need a feed"):
        train_fed()
        assert {v.simple_value for e in events(tmp_path) for v in e.summary.value if v.tag == "fed"} == {5.0}
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            train_fed()


def test_summaries_consume_no_batch(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    batch = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(10_000)).get_next()
    tf1.summary.scalar("batch", batch)
    with tf.control_dependencies([model.train]):
        train = tf.identity(batch)
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.01, save_model_secs=0)
    seen: list[int] = []

    def has_seen_enough(session: Any) -> bool:
        seen.append(session.run(train))
        if len(seen) % 50 == 0:
            supervisor.summary_writer.flush()
        return len(seen) % 50 == 0 and len([e for e in events(tmp_path) if e.HasField("summary")]) > 20

    with supervisor.managed_session() as session:
        wait_for(lambda: has_seen_enough(session))
    if kind.differs("summaries take no input"):
        assert seen == list(range(len(seen)))
        shown = [(e.step, v.simple_value) for e in events(tmp_path) for v in e.summary.value if v.tag == "batch"]
        assert shown
        assert all(value == step - 1 for step, value in shown)  # the batch of that very step
    else:
        assert seen != list(range(len(seen)))


def test_a_failing_summary_ends_the_training_and_costs_no_step(kind: Kind, tmp_path: Path) -> None:
    step = tf1.train.get_or_create_global_step()
    batch = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(10**9)).get_next()
    tf1.summary.histogram("h", tf.where(batch < 100, tf.cast(batch, tf.float32), float("nan")))
    with tf.control_dependencies([batch]):
        train = tf1.assign_add(step, 1)
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.01, save_model_secs=0)
    failures: list[Exception] = []
    steps: list[int] = []

    def train_once(session: Any) -> bool:
        try:
            steps.append(session.run(train))
        except tf.errors.OpError as error:
            failures.append(error)
        return bool(supervisor.should_stop())

    def train_until_it_fails() -> None:
        with supervisor.managed_session() as session:
            wait_for(lambda: train_once(session))

    with pytest.raises(tf.errors.InvalidArgumentError, match="Nan in summary histogram for: h"):
        train_until_it_fails()
    assert not failures
    assert steps == list(range(1, len(steps) + 1))
