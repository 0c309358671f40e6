"""A managed session starts and ends in every way as TensorFlow's does."""

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
    """Return one without a logdir: most ways out do not involve files."""
    tf1.train.get_or_create_global_step()
    return kind.Supervisor(stop_grace_secs=20)


@contextlib.contextmanager
def thread_that(supervisor: Any, does: Any) -> Iterator[threading.Thread]:
    """Run `does` in a thread that the supervisor watches, and wait until it has ended."""

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


def test_an_error_in_the_block_is_raised(supervisor: Any) -> None:
    with pytest.raises(Mishap, match="here"), supervisor.managed_session():
        fail(Mishap("here"))
    assert supervisor.coord.joined


def test_a_threads_error_is_raised_from_the_block(supervisor: Any) -> None:
    with pytest.raises(Mishap), supervisor.managed_session():  # noqa: PT012
        with thread_that(supervisor, lambda: fail(Mishap())):
            pass
        assert supervisor.should_stop()


def test_the_first_of_two_errors_wins(supervisor: Any) -> None:
    with pytest.raises(Mishap, match="first"), supervisor.managed_session():  # noqa: PT012
        with thread_that(supervisor, lambda: fail(Mishap("first"))):
            pass
        fail(Mishap("second"))


def test_an_error_after_a_clean_stop_is_raised(kind: Kind, supervisor: Any) -> None:
    expected = pytest.raises(Mishap) if kind.differs("errors after a clean stop") else contextlib.nullcontext()
    with expected, supervisor.managed_session():
        supervisor.request_stop()
        fail(Mishap())


def test_a_threads_error_after_the_end_of_input_is_raised(kind: Kind, supervisor: Any) -> None:
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
def test_errors_that_a_stop_causes_are_ignored(supervisor: Any, error: Exception) -> None:
    with supervisor.managed_session():
        supervisor.request_stop()
        fail(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_passes_through(supervisor: Any, error: type[BaseException]) -> None:
    with pytest.raises(error), supervisor.managed_session() as session:
        fail(error())
    assert supervisor.coord.joined
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(supervisor.global_step)


def test_an_interrupt_wins_over_a_failed_thread(kind: Kind, supervisor: Any) -> None:
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


def test_an_error_given_outside_of_its_handler_is_the_one_raised(kind: Kind, supervisor: Any) -> None:
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


def test_a_loop_may_leave_by_break_or_return(supervisor: Any) -> None:
    def first_step() -> Any:
        with supervisor.managed_session() as session:
            return session.run(supervisor.global_step)

    assert first_step() == 0
    while True:
        with supervisor.managed_session():
            break
    assert supervisor.coord.joined


def test_a_second_session_knows_nothing_of_an_earlier_error(supervisor: Any) -> None:
    with pytest.raises(Mishap), supervisor.managed_session():
        fail(Mishap())
    with supervisor.managed_session() as session:
        assert not supervisor.should_stop()
        assert not supervisor.coord.joined
        session.run(supervisor.global_step)


def test_a_second_session_starts_although_the_first_was_never_stopped(supervisor: Any) -> None:
    for _ in range(2):
        with supervisor.managed_session() as session:
            assert not supervisor.should_stop()
            session.run(supervisor.global_step)


def test_a_thread_that_is_truly_stuck_is_named(kind: Kind) -> None:
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


def test_stop_may_ignore_a_stuck_thread_and_joins_the_threads_it_is_given(kind: Kind) -> None:
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


def test_a_thread_blocked_in_the_session_is_freed(kind: Kind) -> None:
    queue = tf.queue.FIFOQueue(1, [tf.float32])
    get = queue.dequeue()
    differs = kind.differs("blocked threads")
    supervisor = kind.Supervisor(stop_grace_secs=60 if differs else 2)  # TensorFlow's class waits for all of it
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


def test_a_stopped_session_may_be_stopped_again(kind: Kind, tmp_path: Path) -> None:
    supervisor = kind.Supervisor(logdir=str(tmp_path / "logdir"))
    supervisor.prepare_or_wait_for_session().close()
    supervisor.stop()
    with pytest.warns(UserWarning, match="Attempting to use a closed FileWriter"):
        supervisor.stop()
