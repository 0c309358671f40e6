"""The table of differences lists exactly what the tests show."""

from pathlib import Path

import pytest
import tensorflow as tf

from tests.conformance.differences import DIFFERENCES, Kind

ELSEWHERE = {
    "keyword-only arguments": "test_construction.py, for our class alone",
    "steady timers": "tests/training/sessions/test_service_threads.py: it takes a clock that can be moved",
}


def test_every_difference_has_its_test() -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {name for name in DIFFERENCES if f'differs("{name}")' in sources}
    assert tested | set(ELSEWHERE) == set(DIFFERENCES)


def test_a_supervisor_does_not_tell_people_to_switch(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    from tensorflow.python.util import deprecation

    deprecation._PRINTED_WARNING.clear()
    tf.get_logger().propagate = True
    kind.Supervisor()
    told = "Please switch to tf.train.MonitoredTrainingSession" in caplog.text
    assert told is not kind.differs("no deprecation warning")
