"""A supervisor's coordinator works by itself, as programs use it."""

import sys
import threading
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind

tf1 = tf.compat.v1


class Mishap(Exception):
    pass


@pytest.fixture
def coord(kind: Kind) -> Any:
    return kind.Supervisor().coord


def _fail(coord: Any, error: BaseException) -> None:
    """Report `error` as its handler would."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001  handed on
        coord.request_stop(caught)


def test_the_coordinator_is_tensorflows(coord: Any) -> None:
    assert isinstance(coord, tf1.train.Coordinator)
    assert not coord.joined
    assert coord._registered_threads == set()


def test_a_stop_can_be_requested_awaited_and_cleared(coord: Any) -> None:
    assert coord.wait_for_stop(0.01) is False
    assert coord.request_stop() is None
    assert coord.should_stop()
    assert coord.wait_for_stop() is True
    coord.clear_stop()
    assert not coord.should_stop()


def test_a_recorded_error_can_be_raised_and_is_cleared_with_the_stop(coord: Any) -> None:
    _fail(coord, Mishap())
    with pytest.raises(Mishap):
        coord.raise_requested_exception()
    coord.clear_stop()
    coord.raise_requested_exception()
    coord.request_stop()
    coord.join([])
    assert coord.joined


def test_an_error_may_be_given_as_a_tuple(coord: Any) -> None:
    try:
        raise Mishap
    except Mishap:
        coord.request_stop(sys.exc_info())
    with pytest.raises(Mishap):
        coord.join([])


def test_the_end_of_input_is_no_error(coord: Any) -> None:
    _fail(coord, tf.errors.OutOfRangeError(None, None, "end"))
    assert coord.should_stop()
    coord.join([])


def test_registered_threads_are_joined_and_then_forgotten(coord: Any) -> None:
    ended: list[int] = []

    def work() -> None:
        with coord.stop_on_exception():
            coord.wait_for_stop()
            ended.append(1)

    thread = threading.Thread(target=work)
    coord.register_thread(thread)
    thread.start()
    coord.request_stop()
    coord.join()
    assert ended == [1]
    assert coord._registered_threads == set()


def test_joining_waits_for_threads_that_end_without_a_stop(coord: Any) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    coord.join([thread])
    assert coord.joined
    assert not coord.should_stop()


def test_a_loop_needs_a_coordinator() -> None:
    with pytest.raises(ValueError, match="'coord' argument must be a Coordinator"):
        tf1.train.LooperThread(object(), 1)


def test_the_threads_of_a_loop_are_registered(kind: Kind) -> None:
    supervisor = kind.Supervisor()
    with supervisor.managed_session():
        looper = supervisor.loop(None, supervisor.wait_for_stop)
        assert looper in supervisor.coord._registered_threads
        assert looper.name.startswith("Thread-")
    assert not looper.is_alive()
