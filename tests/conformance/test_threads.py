"""A session's queue runners and loops start and stop with it."""

import threading
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind

tf1 = tf.compat.v1


class Mishap(Exception):
    pass


@pytest.fixture
def supervisor(kind: Kind) -> Any:
    """Return one without a logdir: most ways out do not involve files."""
    tf1.train.get_or_create_global_step()
    return kind.Supervisor(stop_grace_secs=20)


def fail(error: BaseException) -> None:
    raise error


def test_queue_runners_start_and_end_with_the_session(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    get = queue.dequeue()
    supervisor = kind.Supervisor()
    with supervisor.managed_session() as session:
        assert [session.run(get) for _ in range(6)] == [1.0] * 6
        assert supervisor.start_queue_runners(session) == []  # they run already
    assert supervisor.coord.joined


def test_without_standard_services_there_are_no_queue_runners_either(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    size = queue.size()
    supervisor = kind.Supervisor()
    with supervisor.managed_session(start_standard_services=False) as session:
        assert session.run(size) == 0
        threads = supervisor.start_queue_runners(session)
        assert len(threads) == 2
        assert all(thread.is_alive() for thread in threads)


def test_a_closed_queue_is_a_normal_end(kind: Kind) -> None:
    limited = tf1.train.limit_epochs(tf.constant([1.0]), num_epochs=3)
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[1]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(limited)]))
    get, seen = queue.dequeue(), []
    supervisor = kind.Supervisor()
    with supervisor.managed_session() as session:
        while True:
            seen.append(session.run(get)[0])
    assert seen == [1.0] * 3


def test_given_queue_runners_are_started_instead(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    runner = tf1.train.QueueRunner(queue, [queue.enqueue(1.0)] * 2)
    get = queue.dequeue()
    supervisor = kind.Supervisor()
    with supervisor.managed_session() as session:
        threads = supervisor.start_queue_runners(session, [runner])
        assert len(threads) == 3  # one for each enqueue op, and one that closes the queue at the end
        assert all(thread.daemon for thread in threads)
        assert session.run(get) == 1.0
    assert not any(thread.is_alive() for thread in threads)


def test_a_queue_runners_error_is_raised_from_the_block(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    with tf.control_dependencies([tf1.assert_less(tf.identity(queue.size()), 0, message="bad input")]):
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    supervisor = kind.Supervisor()
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad input"), supervisor.managed_session():
        supervisor.wait_for_stop()


def test_the_end_of_input_in_a_loop_is_a_normal_end(supervisor: Any) -> None:
    with supervisor.managed_session():
        supervisor.loop(0.01, lambda: fail(tf.errors.OutOfRangeError(None, None, "end")))
        supervisor.wait_for_stop()
    assert supervisor.should_stop()


def test_loop_repeats_its_call_until_the_stop(supervisor: Any) -> None:
    calls, enough = [], threading.Event()

    def call(first: int, second: int) -> None:
        calls.append((first, second))
        if len(calls) == 3:
            enough.set()

    with supervisor.managed_session():
        looper = supervisor.loop(0.01, call, args=(1,), kwargs={"second": 2})
        assert isinstance(looper, tf1.train.LooperThread)
        assert looper.daemon
        assert enough.wait(300.0)
    assert not looper.is_alive()
    assert set(calls) == {(1, 2)}


def test_loop_without_an_interval_calls_back_to_back(supervisor: Any) -> None:
    enough = threading.Event()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        if len(calls) > 100:
            enough.set()

    with supervisor.managed_session():
        supervisor.loop(None, call)
        assert enough.wait(300.0)


@pytest.mark.parametrize("interval_s", [0.01, None])
def test_stop_loop_is_called_on_a_stopped_loop_and_not_on_a_failed_one(
    supervisor: Any, interval_s: float | None
) -> None:
    told: list[str] = []
    gate, called = threading.Event(), threading.Event()

    def looped(name: str, target: Any) -> None:
        looper = supervisor.loop(interval_s, target)
        looper.stop_loop = lambda: told.append(name)
        gate.set()

    def call() -> None:
        called.set()
        gate.wait(20)

    def call_and_fail() -> None:
        gate.wait(20)
        raise Mishap

    with supervisor.managed_session():
        looped("stopped", call)
        assert called.wait(300.0)
    assert told == ["stopped"]
    gate.clear()
    with pytest.raises(Mishap), supervisor.managed_session():  # noqa: PT012
        looped("failed", call_and_fail)
        supervisor.wait_for_stop()
    assert told == ["stopped"]


def test_loop_needs_a_target_for_its_arguments(supervisor: Any) -> None:
    with pytest.raises(ValueError, match="'args' and 'kwargs' argument require that you also pass 'target'"):
        supervisor.loop(1, None, args=(1,))


def test_a_loops_error_is_raised_from_the_block(supervisor: Any) -> None:
    with pytest.raises(Mishap), supervisor.managed_session():  # noqa: PT012
        supervisor.loop(0.01, lambda: fail(Mishap()))
        assert supervisor.wait_for_stop() is None
        assert supervisor.should_stop()
