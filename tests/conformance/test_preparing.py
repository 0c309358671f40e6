"""A session is initialized as requested, and a failed initialization says why."""

from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind

tf1 = tf.compat.v1


class Mishap(Exception):
    pass


def fail(error: BaseException) -> None:
    raise error


def test_the_end_of_input_while_preparing_is_raised(kind: Kind) -> None:
    tf1.train.get_or_create_global_step()
    supervisor = kind.Supervisor(init_fn=lambda session: fail(tf.errors.OutOfRangeError(None, None, "truncated")))
    differs = kind.differs("end of input while preparing")
    expected = tf.errors.OutOfRangeError if differs else RuntimeError
    with pytest.raises(expected, match="truncated" if differs else "generator didn't yield"):
        supervisor.managed_session().__enter__()


def test_an_error_while_preparing_is_raised(kind: Kind) -> None:
    tf1.train.get_or_create_global_step()
    supervisor = kind.Supervisor(init_fn=lambda session: fail(Mishap()))
    with pytest.raises(Mishap):
        supervisor.managed_session().__enter__()


def test_a_session_without_any_initialization_says_so(kind: Kind) -> None:
    tf1.train.get_or_create_global_step()
    supervisor = kind.Supervisor(init_op=None, local_init_op=None)
    with pytest.raises(RuntimeError) as caught:
        supervisor.prepare_or_wait_for_session()
    assert str(caught.value) == "Model is not initialized and no init_op or init_fn or local_init_op was given"


def test_an_incomplete_initialization_names_what_is_missing(kind: Kind) -> None:
    tf1.get_variable("forgotten", [], tf.float32)
    supervisor = kind.Supervisor(init_op=tf.no_op())
    with pytest.raises(
        RuntimeError, match=r"(?s)Init operations did not make model ready.*Variables not init.*forgotten"
    ):
        supervisor.prepare_or_wait_for_session()


def test_local_variables_and_tables_are_initialized(kind: Kind) -> None:
    local = tf1.get_variable("l", initializer=[1.0, 2.0], collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False)
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([7], tf.int64))
    found = tf.lookup.StaticHashTable(keys, -1).lookup(tf.constant("a"))
    with kind.Supervisor(init_op=None).managed_session() as session:
        assert session.run(local).tolist() == [1.0, 2.0]
        assert session.run(found) == 7


def test_a_model_that_is_not_ready_for_its_local_initialization_is_an_error(kind: Kind) -> None:
    tf1.get_variable("late", [], tf.float32)
    ready = tf1.report_uninitialized_variables(tf1.global_variables())
    supervisor = kind.Supervisor(init_op=tf.no_op(), ready_for_local_init_op=ready)
    with pytest.raises(
        RuntimeError, match=r"(?s)Init operations did not make model ready for local_init\.  Init op: .*late"
    ):
        supervisor.prepare_or_wait_for_session()


def test_the_local_initialization_has_the_given_options_and_is_logged(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    tf.get_logger().setLevel("INFO")
    local = tf1.get_variable("l", initializer=1.0, collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False)
    supervisor = kind.Supervisor(local_init_run_options=tf1.RunOptions(timeout_in_ms=60_000))
    with supervisor.managed_session() as session:
        assert session.run(local) == 1.0
    steps = [
        "Running local_init_op.",
        "Done running local_init_op.",
        "Starting standard services.",
        "Starting queue runners.",
    ]
    assert [message for message in caplog.messages if message in steps] == steps


def test_feeds_and_init_fn_reach_the_initialization(kind: Kind) -> None:
    value = tf1.placeholder(tf.float32, [])
    variable = tf1.get_variable("v", initializer=value)
    seen: list[Any] = []
    supervisor = kind.Supervisor(
        init_feed_dict={value: 3.0}, init_fn=lambda session: seen.append(session.run(variable))
    )
    assert supervisor.init_feed_dict == {value: 3.0}
    with supervisor.managed_session():
        assert seen == [3.0]


def test_the_session_is_opened_with_the_given_config(kind: Kind) -> None:
    with tf.device("/cpu:1"):
        value = tf.constant(1.0)
    supervisor = kind.Supervisor()
    with supervisor.managed_session("", config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
        assert session.sess_str == b""
        assert len(session.list_devices()) == 2
        assert session.run(value) == 1.0
