"""A session opens on any master, and a worker waits for its chief."""

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.conformance.differences import Kind
from tests.conformance.logdirs import WAIT_S_MAX, look_op, saved

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def test_local_is_a_valid_master(kind: Kind, tmp_path: Path) -> None:
    step = tf1.train.get_or_create_global_step()
    train = tf1.assign_add(step, 1)
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0)
    if kind.differs("master local"):
        with supervisor.managed_session("local") as session:
            assert session.sess_str.startswith(b"grpc://")
            session.run(train)
        assert saved(tmp_path, "global_step") == 1
    else:
        with pytest.raises(tf.errors.NotFoundError):
            supervisor.managed_session("local").__enter__()


def test_a_worker_gives_up_after_its_time_limit(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()
    tf1.get_variable("waited_for", [], tf.float32)
    worker = kind.Supervisor(is_chief=False, recovery_wait_secs=30)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"Session was not ready after waiting 1 secs\."):
        worker.prepare_or_wait_for_session(server.target, max_wait_secs=1)


def test_a_worker_finds_a_chief_that_starts_a_moment_later(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()
    tf1.get_variable("waited_for_a_moment", [], tf.float32)
    has_looked, ready = look_op()
    worker = kind.Supervisor(is_chief=False, recovery_wait_secs=30, ready_op=ready)

    def initialize() -> None:
        assert has_looked.wait(WAIT_S_MAX)
        with tf1.Session(server.target, graph=worker._graph) as session:
            session.run(worker.init_op)

    chief = threading.Thread(target=initialize)
    chief.start()
    if kind.differs("quick waiting"):
        session = worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
        assert session.run(worker.ready_op).size == 0
        session.close()
        worker.stop()
    else:  # it polls once, and its next poll would come too late
        with pytest.raises(tf.errors.DeadlineExceededError):
            worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
    chief.join()


@pytest.mark.long
def test_a_chief_and_a_worker_train_the_same_model_on_a_server(kind: Kind, tmp_path: Path) -> None:
    server = tf1.train.Server.create_local_server()
    assert server.target.startswith("grpc://")

    def build() -> tuple[Any, Any]:
        with tf.device("/job:localhost"):
            step = tf1.train.get_or_create_global_step()
            return step, tf1.assign_add(step, 1)

    with tf.Graph().as_default():
        step, train = build()
        chief = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0)
        with chief.managed_session(server.target) as session:
            for _ in range(3):
                session.run(train)
            assert _work(kind, server.target, build) == 5
            chief.saver.save(session, chief.save_path, global_step=step)
    assert saved(tmp_path, "global_step") == 5
    with tf.Graph().as_default():
        step, _ = build()
        other = tf1.train.Server.create_local_server()
        with kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=0).managed_session(other.target) as session:
            assert session.run(step) == 5


def _work(kind: Kind, target: str, build: Any) -> int:
    """Train two steps in a worker. It initializes its own variables, starts its queue runners and
    has no services.
    """
    with tf.Graph().as_default():
        _, train = build()
        local = tf1.get_variable("own", initializer=3.0, collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False)
        queue = tf.queue.FIFOQueue(2, [tf.float32], shapes=[[]], shared_name="of_the_worker")
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
        get = queue.dequeue()
        worker = kind.Supervisor(is_chief=False, recovery_wait_secs=1, init_op=tf.no_op())
        before = threading.active_count()
        with worker.managed_session(target) as session:
            assert (
                threading.active_count() <= before + 2 + 1
            )  # the queue runner's two, and the one that runs its close op
            assert session.run(local) == 3.0
            assert session.run(get) == 1.0
            session.run(train)
            return int(session.run(train))


def test_a_worker_waits_until_the_chief_has_initialized_what_it_does_not(kind: Kind) -> None:
    server = tf1.train.Server.create_local_server()

    def supervised(is_chief: bool) -> tuple[Any, Any, Any]:
        with tf.Graph().as_default():
            with tf.device("/job:localhost"):
                shared = tf1.get_variable(f"shared_{kind.name}", initializer=2.0, use_resource=False)
                # By its own name: chief and worker have the same device here.
                own = tf1.get_variable(
                    f"own_{is_chief}_{kind.name}",
                    initializer=shared.initialized_value() * 10 if is_chief else shared * 10,
                    collections=[tf1.GraphKeys.LOCAL_VARIABLES],
                    trainable=False,
                    use_resource=False,
                )
            ready = tf1.report_uninitialized_variables(tf1.global_variables())
            supervisor = kind.Supervisor(is_chief=is_chief, recovery_wait_secs=0.2, ready_for_local_init_op=ready)
            return supervisor, own, supervisor.prepare_or_wait_for_session(server.target, max_wait_secs=30)

    chief, _, chiefs_session = supervised(True)
    worker, own, workers_session = supervised(False)
    assert workers_session.run(own) == 20.0
    for supervisor, session in ((worker, workers_session), (chief, chiefs_session)):
        supervisor.stop()
        session.close()
