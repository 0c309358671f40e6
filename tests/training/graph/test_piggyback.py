"""A summary computed with a training step consumes nothing of its own and can fail only itself."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.training.graph.session import adopt_session, set_pending_fetch
from procsv.training.snapshots.boundary import Boundary
from procsv.training.summaries.piggyback import PendingFetch, PiggybackFetch, Split

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


def numbers() -> Any:
    """Return an op that takes the next number in each run: 0, 1, 2, …"""
    return tf.cast(tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(1000)).get_next(), tf.float32)


def along(op: Any, fetches: Any, feed_dict: Any = None) -> Split | None:
    return PiggybackFetch(op, tf1.get_default_graph()).split(fetches, feed_dict)


def names(split: Split | None) -> list[str]:
    assert split is not None
    return [element.name for element in split.along]


def carried(op: Any, fetches: Any, feed_dict: Any = None, runs: int = 1) -> tuple[PendingFetch, list[Any]]:
    """Fetch `op` along with the last of that many runs. Return the fetch and the runs' results."""
    carrying = PiggybackFetch(op, tf1.get_default_graph())
    pending_fetch = PendingFetch(carrying, lambda: 7)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        boundary = Boundary(lambda: None)
        adopt_session(session, boundary)
        results = [session.run(fetches, feed_dict) for _ in range(runs - 1)]
        set_pending_fetch(session, pending_fetch)
        results.append(session.run(fetches, feed_dict))
        results.append(session.run(fetches, feed_dict))
    assert pending_fetch.is_over
    return pending_fetch, results


def scalar(pending_fetch: PendingFetch) -> float:
    assert pending_fetch.error is None
    return float(tf1.Summary.FromString(pending_fetch.value).value[0].simple_value)


def test_a_summary_shows_the_steps_own_batch_and_consumes_none() -> None:
    batch = numbers()
    pending_fetch, results = carried(tf1.summary.scalar("batch", batch * 10), tf.identity(batch), runs=3)
    assert results == [0, 1, 2, 3]
    assert (scalar(pending_fetch), pending_fetch.step) == (20.0, 7)


def test_only_what_needs_a_batch_is_fetched_along() -> None:
    batch, weights = numbers(), tf1.get_variable("weights", [1000])
    loss = tf.reduce_sum(weights) * batch
    train = tf1.assign_sub(weights, tf.fill([1000], loss))
    summary = tf1.summary.merge([tf1.summary.scalar("loss", loss), tf1.summary.histogram("weights", weights)])
    assert names(along(summary, train)) == [loss.name]


def test_a_summary_that_cannot_be_computed_fails_alone() -> None:
    batch = numbers()
    bad = tf.where(batch < 1, batch, np.nan)
    pending_fetch, results = carried(tf1.summary.histogram("h", bad), tf.identity(batch), runs=2)
    assert results == [0, 1, 2]
    assert isinstance(pending_fetch.error, tf.errors.InvalidArgumentError)
    assert "Nan in summary histogram" in str(pending_fetch.error)


def test_a_failing_step_reports_its_own_error() -> None:
    batch = numbers()
    fetch = tf1.assert_less(batch, 0.0)
    piggyback = PiggybackFetch(tf1.summary.scalar("s", batch), tf1.get_default_graph())
    pending_fetch = PendingFetch(piggyback, lambda: 7)
    with tf1.Session() as session:
        boundary = Boundary(lambda: None)
        adopt_session(session, boundary)
        set_pending_fetch(session, pending_fetch)
        with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
            session.run(fetch)
    assert pending_fetch.is_over
    assert pending_fetch.value is None
    assert pending_fetch.error is None


def test_the_users_feeds_reach_the_summary() -> None:
    fed = tf1.placeholder(tf.float32, [])
    train = tf1.assign_add(tf1.get_variable("v", []), fed)
    pending_fetch, _ = carried(tf1.summary.scalar("fed", fed * 2), train, {fed: 4.0})
    assert scalar(pending_fetch) == 8.0


def test_a_run_that_does_not_do_what_the_summary_needs_does_not_fetch_it() -> None:
    batch, other = numbers(), tf1.placeholder(tf.float32, [])
    summary = tf1.summary.scalar("batch", batch)
    assert along(summary, tf.constant(1)) is None
    assert along(summary, tf.random.uniform([])) is None
    assert along(tf1.summary.scalar("sum", batch + other), batch) is None
    assert along(summary, object()) is None


def test_an_update_that_the_summary_depends_on_is_not_made_twice() -> None:
    count = tf1.get_variable("count", [], initializer=tf1.zeros_initializer(), use_resource=False)
    train = tf1.assign_add(count, 1.0)
    with tf.control_dependencies([train]):
        hanging = tf1.summary.scalar("hanging", tf.constant(5.0))
    for summary, value in ((hanging, 5.0), (tf1.summary.scalar("updated", train), 2.0)):
        assert not PiggybackFetch(summary, tf1.get_default_graph()).is_harmless_alone
        pending_fetch, results = carried(summary, train, runs=2)
        assert results == [1.0, 2.0, 3.0]
        assert scalar(pending_fetch) == value


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_what_cannot_be_fetched_alone_is_fetched_with_everything_it_needs(control_flow: str) -> None:
    batch = numbers()

    def doubled(i: Any, x: Any) -> Any:
        return i + 1, x * 2

    def loop() -> Any:
        return tf1.while_loop(lambda i, x: i < 3, doubled, [0, batch])[1]

    summary = tf1.summary.scalar("looped", _with_control_flow(control_flow, loop))
    pending_fetch, results = carried(summary, tf.identity(batch), runs=2)
    assert results == [0, 1, 2]
    assert scalar(pending_fetch) == 8.0


def _with_control_flow(version: str, build: Callable[[], Any]) -> Any:
    was = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if version == "v2" else tf1.disable_control_flow_v2)()
    try:
        return build()
    finally:
        (tf1.enable_control_flow_v2 if was else tf1.disable_control_flow_v2)()


def test_a_list_of_tensors_is_not_passed_from_run_to_run() -> None:
    batch = numbers()
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.stack([batch, batch]), element_shape=tf.zeros([0], tf.int32))
    values = tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=tf.zeros([0], tf.int32), element_dtype=tf.float32
    )
    used = tf.identity(handle)
    summary = tf1.summary.scalar("stacked", tf.reduce_sum(values))
    assert names(along(summary, [batch, used.op])) == [values.name]
    pending_fetch, _ = carried(summary, [batch, used.op], runs=2)
    assert scalar(pending_fetch) == 2.0
