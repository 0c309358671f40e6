"""Sessions: how they begin, and every way out of managed_session."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind

tf1 = tf.compat.v1


class Mishap(Exception):
    pass


@pytest.fixture
def supervisor(kind: Kind) -> Any:
    """One without logdir: most ways out have nothing to do with files."""
    tf1.train.get_or_create_global_step()
    return kind.Supervisor(stop_grace_secs=20)


@contextlib.contextmanager
def thread_that(supervisor: Any, does: Any) -> Iterator[threading.Thread]:
    """Runs `does` under the supervisor's eyes, and waits until it has ended."""

    def run() -> None:
        with supervisor.stop_on_exception():
            does()

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()


def fail(error: BaseException) -> None:
    raise error


def test_a_normal_end_stops_and_closes(supervisor: Any) -> None:
    with supervisor.managed_session() as session:
        assert isinstance(session, tf1.Session)
        assert tf1.get_default_session() is None
        assert not supervisor.should_stop()
    assert supervisor.should_stop()
    assert supervisor.coord.joined
    with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
        session.run(supervisor.global_step)


def test_the_end_of_input_is_a_normal_end(supervisor: Any) -> None:
    with supervisor.managed_session():
        fail(tf.errors.OutOfRangeError(None, None, "end"))
    assert supervisor.should_stop()


def test_an_error_in_the_block_is_raised_from_it(supervisor: Any) -> None:
    with pytest.raises(Mishap, match="here"), supervisor.managed_session():
        fail(Mishap("here"))
    assert supervisor.coord.joined


def test_an_error_of_a_thread_is_raised_from_the_block(supervisor: Any) -> None:
    with pytest.raises(Mishap), supervisor.managed_session():  # noqa: PT012
        with thread_that(supervisor, lambda: fail(Mishap())):
            pass
        assert supervisor.should_stop()


def test_of_two_errors_the_first_wins(supervisor: Any) -> None:
    with pytest.raises(Mishap, match="first"), supervisor.managed_session():  # noqa: PT012
        with thread_that(supervisor, lambda: fail(Mishap("first"))):
            pass
        fail(Mishap("second"))


def test_an_error_after_a_clean_stop(kind: Kind, supervisor: Any) -> None:
    expected = pytest.raises(Mishap) if kind.differs("errors after a clean stop") else contextlib.nullcontext()
    with expected, supervisor.managed_session():
        supervisor.request_stop()
        fail(Mishap())


def test_a_later_error_of_a_thread_after_the_end_of_input(kind: Kind, supervisor: Any) -> None:
    expected = pytest.raises(Mishap) if kind.differs("errors after a clean stop") else contextlib.nullcontext()
    with expected, supervisor.managed_session():
        with thread_that(supervisor, lambda: fail(tf.errors.OutOfRangeError(None, None, "end"))):
            pass
        with thread_that(supervisor, lambda: fail(Mishap())):
            pass


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.CancelledError(None, None, "the queue is closed"),
        tf.errors.OutOfRangeError(None, None, "the queue is closed"),
        RuntimeError("Attempted to use a closed Session."),
    ],
)
def test_what_a_stop_itself_brings_about_is_no_error(supervisor: Any, error: Exception) -> None:
    with supervisor.managed_session():
        supervisor.request_stop()
        fail(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through(supervisor: Any, error: type[BaseException]) -> None:
    with pytest.raises(error), supervisor.managed_session() as session:
        fail(error())
    assert supervisor.coord.joined
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(supervisor.global_step)


def test_an_interrupt_when_a_thread_has_failed_besides(kind: Kind, supervisor: Any) -> None:
    expected = KeyboardInterrupt if kind.differs("interrupts stay") else Mishap
    with pytest.raises(expected), supervisor.managed_session():  # noqa: PT012
        with thread_that(supervisor, lambda: fail(Mishap())):
            pass
        fail(KeyboardInterrupt())


def test_stop_on_exception_keeps_an_interrupt_for_the_end(supervisor: Any) -> None:
    with pytest.raises(KeyboardInterrupt), supervisor.managed_session():  # noqa: PT012
        with supervisor.stop_on_exception():
            fail(KeyboardInterrupt())
        assert supervisor.should_stop()


def test_an_error_that_is_given_outside_its_handler(kind: Kind, supervisor: Any) -> None:
    supervisor.prepare_or_wait_for_session().close()
    if kind.differs("errors outside a handler"):
        supervisor.request_stop(Mishap("given"))
        assert supervisor.should_stop()
        with pytest.raises(Mishap, match="given"):
            supervisor.stop()
    else:
        with pytest.raises(TypeError):
            supervisor.request_stop(Mishap("given"))
        assert not supervisor.should_stop()
        with pytest.raises(TypeError):
            supervisor.stop()


def test_an_error_after_the_threads_were_joined_is_raised_at_once(supervisor: Any) -> None:
    supervisor.prepare_or_wait_for_session().close()
    supervisor.stop()
    try:
        fail(Mishap())
    except Mishap as error:
        with pytest.raises(Mishap):
            supervisor.request_stop(error)


def test_end_of_input_while_preparing(kind: Kind) -> None:
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


def test_without_any_initialization_it_says_so(kind: Kind) -> None:
    tf1.train.get_or_create_global_step()
    supervisor = kind.Supervisor(init_op=None, local_init_op=None)
    with pytest.raises(RuntimeError) as caught:
        supervisor.prepare_or_wait_for_session()
    assert str(caught.value) == "Model is not initialized and no init_op or init_fn or local_init_op was given"


def test_an_initialization_that_leaves_something_out_is_named(kind: Kind) -> None:
    tf1.get_variable("forgotten", [], tf.float32)
    supervisor = kind.Supervisor(init_op=tf.no_op())
    with pytest.raises(
        RuntimeError, match=r"(?s)Init operations did not make model ready.*Variables not init.*forgotten"
    ):
        supervisor.prepare_or_wait_for_session()


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


def test_a_second_session_begins_where_nobody_has_stopped(supervisor: Any) -> None:
    for _ in range(2):
        with supervisor.managed_session() as session:
            assert not supervisor.should_stop()
            session.run(supervisor.global_step)


def test_a_thread_that_really_is_stuck_is_named(kind: Kind) -> None:
    supervisor = kind.Supervisor(stop_grace_secs=1)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="stuck-one", daemon=True)
    thread.start()
    supervisor.coord.register_thread(thread)
    with pytest.raises(RuntimeError) as caught, supervisor.managed_session():
        pass
    assert str(caught.value) == "Coordinator stopped with threads still running: stuck-one"
    over.set()
    thread.join()


def test_stop_may_ignore_a_stuck_thread_and_joins_those_it_is_given(kind: Kind) -> None:
    supervisor = kind.Supervisor(stop_grace_secs=0.2)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="stuck-one", daemon=True)
    thread.start()
    session = supervisor.prepare_or_wait_for_session()
    with pytest.raises(RuntimeError, match="stuck-one"):
        supervisor.stop([thread])
    supervisor.stop([thread], ignore_live_threads=True)
    over.set()
    thread.join()
    session.close()


def test_a_thread_that_is_blocked_in_the_session(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(1, [tf.float32])
    get = queue.dequeue()
    supervisor = kind.Supervisor(stop_grace_secs=2)
    differs = kind.differs("blocked threads")
    expected = contextlib.nullcontext() if differs else pytest.raises(RuntimeError, match="threads still running")
    is_blocked = threading.Event()

    def wait_for_input(session: Any) -> None:
        is_blocked.set()
        with contextlib.suppress(tf.errors.CancelledError), supervisor.stop_on_exception():
            session.run(get)

    with expected, supervisor.managed_session() as session:
        thread = threading.Thread(target=wait_for_input, args=(session,), daemon=True)
        thread.start()
        supervisor.coord.register_thread(thread)
        is_blocked.wait()
    thread.join(20)
    assert not thread.is_alive()


def test_queue_runners_run_and_end_with_the_session(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    get = queue.dequeue()
    supervisor = kind.Supervisor()
    with supervisor.managed_session() as session:
        assert [session.run(get) for _ in range(6)] == [1.0] * 6
        assert supervisor.start_queue_runners(session) == []  # they run already
    assert supervisor.coord.joined


def test_without_standard_services_no_queue_runners_either(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
    size = queue.size()
    supervisor = kind.Supervisor()
    with supervisor.managed_session(start_standard_services=False) as session:
        assert session.run(size) == 0
        threads = supervisor.start_queue_runners(session)
        assert len(threads) == 2
        assert all(thread.is_alive() for thread in threads)


def test_the_end_of_a_queue_is_a_normal_end(kind: Kind) -> None:
    limited = tf1.train.limit_epochs(tf.constant([1.0]), num_epochs=3)
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[1]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(limited)]))
    get, seen = queue.dequeue(), []
    supervisor = kind.Supervisor()
    with supervisor.managed_session() as session:
        while True:
            seen.append(session.run(get)[0])
    assert seen == [1.0] * 3


def test_loop_calls_until_the_stop(supervisor: Any) -> None:
    calls, enough = [], threading.Event()

    def call(first: int, second: int) -> None:
        calls.append((first, second))
        if len(calls) == 3:
            enough.set()

    with supervisor.managed_session():
        looper = supervisor.loop(0.01, call, args=(1,), kwargs={"second": 2})
        assert isinstance(looper, tf1.train.LooperThread)
        assert looper.daemon
        assert enough.wait(20)
    assert not looper.is_alive()
    assert set(calls) == {(1, 2)}


def test_loop_without_interval_calls_back_to_back(supervisor: Any) -> None:
    enough = threading.Event()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        if len(calls) > 100:
            enough.set()

    with supervisor.managed_session():
        supervisor.loop(None, call)
        assert enough.wait(20)


def test_loop_wants_a_target_for_its_arguments(supervisor: Any) -> None:
    with pytest.raises(ValueError, match="'args' and 'kwargs' argument require that you also pass 'target'"):
        supervisor.loop(1, None, args=(1,))


def test_an_error_in_a_loop_is_raised_from_the_block(supervisor: Any) -> None:
    with pytest.raises(Mishap), supervisor.managed_session():  # noqa: PT012
        supervisor.loop(0.01, lambda: fail(Mishap()))
        assert supervisor.wait_for_stop() is None
        assert supervisor.should_stop()


def test_a_stopped_session_may_stop_again(kind: Kind, tmp_path: Path) -> None:
    supervisor = kind.Supervisor(logdir=str(tmp_path / "logdir"))
    supervisor.prepare_or_wait_for_session().close()
    supervisor.stop()
    with pytest.warns(UserWarning, match="Attempting to use a closed FileWriter"):
        supervisor.stop()


def test_local_is_a_master(kind: Kind) -> None:
    supervisor = kind.Supervisor()
    if kind.differs("master local"):
        with supervisor.managed_session("local") as session:
            assert session.sess_str.startswith(b"grpc://")
    else:
        with pytest.raises(tf.errors.NotFoundError):
            supervisor.managed_session("local").__enter__()


def test_a_worker_gives_up_after_the_time_it_was_given(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()
    tf1.get_variable("waited_for", [], tf.float32)
    worker = kind.Supervisor(is_chief=False, recovery_wait_secs=30)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"Session was not ready after waiting 1 secs\."):
        worker.prepare_or_wait_for_session(server.target, max_wait_secs=1)


def test_a_worker_whose_chief_comes_a_moment_later(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()
    tf1.get_variable("waited_for_a_moment", [], tf.float32)
    worker = kind.Supervisor(is_chief=False, recovery_wait_secs=30)

    def initialize() -> None:
        with tf1.Session(server.target, graph=worker._graph) as session:
            session.run(worker.init_op)

    chief = threading.Timer(0.5, initialize)
    chief.start()
    if kind.differs("quick waiting"):
        session = worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
        assert session.run(worker.ready_op).size == 0
        session.close()
        worker.stop()
    else:  # it looks once, and its next look would come too late
        with pytest.raises(tf.errors.DeadlineExceededError):
            worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
    chief.join()
