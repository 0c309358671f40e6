"""Monitored sessions without files call hooks, end and recover as TensorFlow's do."""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import procsv
from tests.conformance.differences import Kind
from tests.conformance.logdirs import WAIT_S_MAX, look_op

tf1 = tf.compat.v1


class Mishap(Exception):
    pass


class Recorder(tf1.train.SessionRunHook):  # type: ignore[name-defined]  # tensorflow is untyped
    """Records its calls. `at` names a call at which it acts once."""

    def __init__(self, name: str, said: list[str], at: str = "", does: Callable[..., None] | None = None) -> None:
        self.name, self.said, self.at, self.does = name, said, at, does

    def _say(self, what: str, *args: Any) -> None:
        self.said.append(f"{self.name}.{what}")
        if what == self.at and self.does is not None:
            does, self.does = self.does, None
            does(*args)

    def begin(self) -> None:
        assert not tf1.get_default_graph().finalized
        self._say("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        assert tf1.get_default_graph().finalized
        self._say("after_create_session", session, coord)

    def before_run(self, run_context: Any) -> None:
        self._say("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._say("after_run")

    def end(self, session: Any) -> None:
        assert session.run(tf1.get_default_graph().get_tensor_by_name("one:0")) == 1
        self._say("end")


def fail(error: BaseException) -> None:
    raise error


def failing(error: BaseException) -> Callable[..., None]:
    return lambda *_: fail(error)


@pytest.fixture
def one() -> Any:
    return tf.constant(1, name="one")


@pytest.fixture
def step() -> Any:
    return tf1.train.get_or_create_global_step()


def test_signatures_are_tensorflows_followed_by_our_keyword_only_arguments(kind: Kind) -> None:
    for name in ("MonitoredTrainingSession", "MonitoredSession", "SingularMonitoredSession"):
        parameters = inspect.signature(getattr(kind.train, name)).parameters.values()
        ours = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        assert ours == (["snapshot_secs", "final_checkpoint"] if kind.differs("keyword-only arguments") else [])
        theirs = inspect.signature(getattr(tf1.train, name)).parameters.values()
        assert [(p.name, p.default) for p in parameters if p.name not in ours] == [(p.name, p.default) for p in theirs]


@pytest.mark.parametrize(
    "name",
    [
        "ChiefSessionCreator",
        "MonitoredSession",
        "SessionCreator",
        "Scaffold",
        "SingularMonitoredSession",
        "StepCounterHook",
        "SummarySaverHook",
        "CheckpointSaverHook",
        "WorkerSessionCreator",
    ],
)
def test_ours_are_instances_of_tensorflows_classes(name: str) -> None:
    assert issubclass(getattr(procsv, name), getattr(tf1.train, name))


def test_hooks_are_called_in_this_order(kind: Kind, one: Any) -> None:
    said: list[str] = []
    hooks = [Recorder("a", said), Recorder("b", said)]
    with kind.train.MonitoredSession(hooks=hooks) as session:
        assert session.graph is tf1.get_default_graph()
        assert session.run([one, {"x": one}]) == [1, {"x": 1}]
    calls = ["begin", "after_create_session", "before_run", "after_run", "end"]
    assert said == [f"{name}.{call}" for call in calls for name in "ab"]
    assert not tf1.get_default_graph().finalized


def test_a_closed_session_stays_closed(kind: Kind, one: Any) -> None:
    session = kind.train.MonitoredSession()
    assert not session.should_stop()
    session.close()
    assert session.should_stop()
    assert session._is_closed()
    assert session.graph is None
    with pytest.raises(RuntimeError, match=r"Session is already closed\."):
        session.close()


def test_no_other_code_takes_it_for_a_session(kind: Kind, step: Any, tmp_path: Any) -> None:
    with kind.train.MonitoredSession() as session:
        saver = tf1.get_collection(tf1.GraphKeys.SAVERS)[0]
        with pytest.raises(TypeError):
            saver.save(session, str(tmp_path / "x"))
        with session._coordinated_creator.tf_sess.as_default():
            assert tf1.train.start_queue_runners(session, coord=None, start=False) == []


def test_a_hook_that_requests_a_stop_gets_it_and_a_later_run_is_an_error(kind: Kind, one: Any) -> None:
    class Stop(tf1.train.SessionRunHook):  # type: ignore[name-defined]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.request_stop()

    with kind.train.MonitoredSession(hooks=[Stop()]) as session:
        session.run(one)
        assert session.should_stop()
        with pytest.raises(RuntimeError, match=r"Run called even after should_stop requested\."):
            session.run(one)


@pytest.mark.parametrize("error", [tf.errors.OutOfRangeError(None, None, "end"), StopIteration()])
def test_the_end_of_input_in_a_run_is_a_clean_end(
    kind: Kind, one: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    said: list[str] = []
    with kind.train.MonitoredSession(hooks=[Recorder("a", said, "before_run", failing(error))]) as session:
        session.run(one)
    assert said[-1] == "a.end"
    assert "Training ends" not in caplog.text


@pytest.mark.parametrize("error", [tf.errors.OutOfRangeError(None, None, "mine"), StopIteration("mine")])
def test_an_end_that_no_run_has_raised_is_reported(
    kind: Kind, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    with kind.train.MonitoredSession():
        fail(error)
    assert ("mine" in caplog.text and __file__ in caplog.text) is kind.differs("ends that nobody asked for")


def test_errors_of_other_types_pass_through_and_hooks_see_no_end(kind: Kind, one: Any) -> None:
    class Derived(tf.errors.OutOfRangeError):
        pass

    for error in (Mishap(), Derived(None, None, "derived")):
        said: list[str] = []
        with pytest.raises(type(error)), kind.train.MonitoredSession(hooks=[Recorder("a", said)]) as session:
            fail(error)
        assert session.should_stop()
        assert "a.end" not in said


def test_a_threads_error_is_raised_at_the_end(kind: Kind, one: Any) -> None:
    with pytest.raises(Mishap), kind.train.MonitoredSession() as session:  # noqa: PT012
        try:
            fail(Mishap())
        except Mishap as error:
            session._coordinated_creator.coord.request_stop(error)
        assert session.run(one) == 1
        assert session.should_stop()


def test_a_threads_error_is_raised_by_a_singular_session(kind: Kind) -> None:
    session = kind.train.SingularMonitoredSession()
    try:
        fail(Mishap())
    except Mishap as error:
        session._coordinated_creator.coord.request_stop(error)
    with pytest.raises(Mishap):
        session.should_stop()
    with pytest.raises(Mishap):
        session.close()


def test_an_interrupt_wins_over_a_failed_thread(kind: Kind) -> None:
    expected = KeyboardInterrupt if kind.differs("interrupts stay") else Mishap
    with pytest.raises(expected), kind.train.MonitoredSession() as session:  # noqa: PT012
        try:
            fail(Mishap())
        except Mishap as error:
            session._coordinated_creator.coord.request_stop(error)
        fail(KeyboardInterrupt())


def test_the_end_of_input_while_a_session_is_created_is_raised_unchanged(kind: Kind) -> None:
    scaffold = kind.train.Scaffold(init_fn=lambda *_: fail(tf.errors.OutOfRangeError(None, None, "truncated")))
    with pytest.raises(tf.errors.OutOfRangeError, match="truncated"):
        kind.train.MonitoredTrainingSession(scaffold=scaffold)


def test_what_a_failing_hook_leaves_unfinished_is_closed(kind: Kind, one: Any) -> None:
    queue = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(one)]))
    seen: list[Any] = []

    def look_and_fail(session: Any, coord: Any) -> None:
        seen.extend([session, coord, list(coord._registered_threads)])
        fail(Mishap())

    with pytest.raises(Mishap):
        kind.train.MonitoredSession(hooks=[Recorder("a", [], "after_create_session", look_and_fail)])
    session, coord, threads = seen
    assert threads
    if kind.differs("failing hooks"):
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(RuntimeError, match="closed Session"):
            session.run(one)
    else:
        assert any(thread.is_alive() for thread in threads)
        assert session.run(one) == 1
        coord.request_stop()
        session.close()
        coord.join(threads)


def test_an_ambiguous_collection_is_named_in_the_error(kind: Kind) -> None:
    for _ in range(2):
        tf1.add_to_collection(tf1.GraphKeys.LOCAL_INIT_OP, tf.no_op())
    with pytest.raises(RuntimeError) as caught:
        kind.train.MonitoredSession()
    is_text = str(caught.value).startswith('More than one item in the collection "local_init_op"')
    assert is_text is kind.differs("readable errors")
    assert "tf.Scaffold(" in str(caught.value)


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_lost_connection_recreates_the_session_and_repeats_the_run(
    kind: Kind, one: Any, step: Any, error: Any
) -> None:
    said: list[str] = []
    hook = Recorder("a", said, "after_run", failing(error(None, None, "gone")))
    train = tf1.assign_add(step, 1)
    with kind.train.MonitoredSession(hooks=[hook]) as session:
        first = session._coordinated_creator.tf_sess
        assert session.run(train) == 1  # the first one is gone with its session
        assert session._coordinated_creator.tf_sess is not first
        assert session.run(train) == 2
    anew = ["after_create_session", "before_run", "after_run"]
    assert said == [f"a.{call}" for call in ["begin", *anew, *anew, "before_run", "after_run", "end"]]


def test_a_singular_session_does_not_recover(kind: Kind, one: Any) -> None:
    hook = Recorder("a", [], "before_run", failing(tf.errors.AbortedError(None, None, "gone")))
    with pytest.raises(tf.errors.AbortedError), kind.train.SingularMonitoredSession(hooks=[hook]) as session:  # noqa: PT012
        assert isinstance(session.raw_session(), tf1.Session)
        session.run(one)


def test_a_session_recovers_several_times_in_a_row(kind: Kind, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("procsv.training.sessions.session_layers._wait", pauses.append)
    failures = [tf.errors.UnavailableError(None, None, "gone")] * 12

    def fail_some_times(scaffold: Any, session: Any) -> None:
        if failures:
            fail(failures.pop())

    with kind.train.MonitoredTrainingSession(scaffold=kind.train.Scaffold(init_fn=fail_some_times)) as session:
        assert session.run(one) == 1
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert pauses == (expected if kind.differs("pauses between recoveries") else [])


def test_a_step_function_may_be_called_again_after_a_recovery(kind: Kind, one: Any) -> None:
    failures = [tf.errors.AbortedError(None, None, "gone")]

    def look(step_context: Any) -> Any:
        if failures:
            fail(failures.pop())
        return step_context.session.run(one)

    with kind.train.MonitoredSession() as session:
        if kind.differs("open sessions for step functions"):
            assert session.run_step_fn(look) == 1
        else:
            with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
                session.run_step_fn(look)


def test_a_step_function_runs_with_or_without_hooks_and_may_request_a_stop(kind: Kind, one: Any) -> None:
    said: list[str] = []

    def both(step_context: Any) -> Any:
        assert step_context.session.run(one) == 1
        assert "a.before_run" not in said
        return step_context.run_with_hooks(one) + 1

    def stop(step_context: Any) -> None:
        step_context.request_stop()

    with kind.train.MonitoredSession(hooks=[Recorder("a", said)]) as session:
        with pytest.raises(ValueError, match="step_context"):
            session.run_step_fn(lambda something_else: None)
        assert session.run_step_fn(both) == 2
        session.run_step_fn(stop)
        raise AssertionError("request_stop leaves the step function and the block")
    assert said == [f"a.{call}" for call in ("begin", "after_create_session", "before_run", "after_run", "end")]


def test_both_step_limits_at_once_are_an_error_and_so_is_no_global_step(kind: Kind, tmp_path: Any) -> None:
    with pytest.raises(RuntimeError, match="Global step should be created"):
        kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))
    tf1.train.get_or_create_global_step()
    for both in (
        {"save_checkpoint_secs": 1, "save_checkpoint_steps": 1},
        {"save_summaries_secs": 1, "save_summaries_steps": 1},
    ):
        with pytest.raises(ValueError, match=r"Can not provide both every_secs and every_steps\."):
            kind.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **both)


def test_a_worker_finds_a_chief_that_starts_a_moment_later(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()
    tf1.get_variable("waited_for_by_a_monitored_session", [], tf.float32)
    has_looked, ready = look_op()
    scaffold, graph = kind.train.Scaffold(ready_for_local_init_op=ready), tf1.get_default_graph()
    scaffold.finalize()

    def initialize() -> None:
        assert has_looked.wait(WAIT_S_MAX)
        with tf1.Session(server.target, graph=graph) as session:
            session.run(scaffold.init_op)

    chief = threading.Thread(target=initialize)
    chief.start()
    arguments = {"scaffold": scaffold, "master": server.target, "is_chief": False, "max_wait_secs": 20}
    if kind.differs("quick waiting"):
        with kind.train.MonitoredTrainingSession(**arguments) as session:
            assert session.run(scaffold.ready_op).size == 0
    else:  # it polls once, and its next poll would come too late
        with pytest.raises(tf.errors.DeadlineExceededError):
            kind.train.MonitoredTrainingSession(**arguments)
    chief.join()
