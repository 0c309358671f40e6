"""Service threads keep their interval by the test's own clock. TensorFlow's LooperThread uses the wall clock."""

import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.training import coordinator as tensorflows

from procsv.training.sessions.coordinator import Coordinator
from procsv.training.sessions.service_threads import TimedThread


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        raise AssertionError("timers do not ask for the wall's time")


class Waits(Coordinator):
    """Records the waits. Each lets the time pass."""

    def __init__(self, clock: Hand, count: int) -> None:
        super().__init__()
        self.clock, self.count, self.waits = clock, count, list[float]()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.clock.now_s += timeout
        return len(self.waits) > self.count


def _waits(call_s: list[float], interval_s: float) -> list[float]:
    """Return the waits of a thread whose calls take that long."""
    clock = Hand()
    coord = Waits(clock, len(call_s))
    took = iter(call_s)

    def call() -> None:
        clock.now_s += next(took)

    thread = TimedThread(coord, tf.Graph(), clock, interval_s, target=call)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert threading.current_thread() is not thread
    return coord.waits


@pytest.mark.parametrize(
    ("call_s", "waits"),
    [
        ([0, 0, 0], [0, 10, 10, 10]),
        ([1, 2, 3], [0, 9, 8, 7]),  # as often as requested, however long a call takes
        ([35, 0, 0], [0, 5, 10, 10]),  # three ticks are missed and not made up for
    ],
)
def test_calls_keep_their_interval_and_missed_ones_are_skipped(call_s: list[float], waits: list[float]) -> None:
    assert _waits(call_s, 10.0) == pytest.approx(waits)


def test_tensorflows_follow_the_wall_clock_and_make_up_for_missed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hand()
    coord, took = Waits(clock, 5), iter([0, 35, 0, -3600, 0])

    def call() -> None:
        clock.now_s += next(took)

    monkeypatch.setattr(tensorflows, "time", SimpleNamespace(time=clock.monotonic))
    thread = tf.compat.v1.train.LooperThread(coord, 10.0, target=call)
    thread.start()
    thread.join(300)
    assert coord.waits[:4] == pytest.approx([0, 10, -25, 10])  # late by 25 s: the next call comes at once
    assert coord.waits[4] > 3600  # the clock was set back an hour, during which nothing is called
