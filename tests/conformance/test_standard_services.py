"""The standard services report and write as TensorFlow's do, also when a session is prepared again."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.platform import tf_logging

from tests.conformance.differences import Kind
from tests.conformance.logdirs import Model, events, has_checkpoint, said, wait_for

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def test_the_services_log_and_write_the_start_first(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    tf.get_logger().setLevel("INFO")
    tf_logging._log_counter_per_token.clear()  # the rate is logged ten times in a process, then never again
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path))
    wanted = {
        "Starting standard services.",
        "Recording summary at step 0.",
        f"Saving checkpoint to path {supervisor.save_path}",
    }
    if not kind.differs("no rate without steps"):
        wanted.add("global_step/sec: 0")
    with supervisor.managed_session():
        wait_for(lambda: wanted <= set(caplog.messages))
    rates = [(e.step, e.summary.value[0].simple_value) for e in events(tmp_path) if said(e) == "global_step/sec"]
    assert rates == ([] if kind.differs("no rate without steps") else [(0, 0.0)])
    (file,) = tmp_path.glob("events.out.*")
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+", file.name)


def test_the_first_rate_of_a_start_counts_only_its_own_steps(kind: Kind, tmp_path: Path) -> None:
    model = Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=1)

    def rates() -> list[float]:
        return [e.summary.value[0].simple_value for e in events(tmp_path) if said(e) == "global_step/sec"]

    with supervisor.managed_session() as session:

        def has_rate() -> bool:
            session.run(model.train)
            supervisor.summary_writer.flush()
            return bool(rates())

        wait_for(has_rate)
    # TensorFlow's class reports 0.0 if its thread looks before the first step has ended.
    assert rates()[0] > 0.0 or not kind.differs("no rate without steps")


def test_a_session_prepared_again_without_a_stop_has_one_set_of_services(kind: Kind, tmp_path: Path) -> None:
    Model()
    supervisor = kind.Supervisor(logdir=str(tmp_path), save_summaries_secs=60)
    sessions = [supervisor.prepare_or_wait_for_session(start_standard_services=False) for _ in range(2)]
    first, second = [supervisor.start_standard_services(session) for session in sessions]
    assert {*first, *second} == supervisor.coord._registered_threads
    assert all(thread.name.startswith("Thread-") for thread in first)
    if kind.differs("one set of services"):
        wait_for(lambda: not any(thread.is_alive() for thread in first))
    assert all(thread.is_alive() for thread in second)
    assert any(thread.is_alive() for thread in first) is not kind.differs("one set of services")
    wait_for(has_checkpoint(tmp_path, "model.ckpt-0"))
    supervisor.stop()
    assert not any(thread.is_alive() for thread in (*first, *second))
    for session in sessions:
        session.close()
