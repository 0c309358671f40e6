"""The first snapshot costs no more than later ones, because its set-up happens before or beside the first steps."""

import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

import procsv
from procsv.training.snapshots.backends import SlotBackend
from tests.support.launched import NEWS_S_MAX

tf1 = tf.compat.v1


def _train(logdir: Path, order: list[str], until: str) -> None:
    """Run one session and train until `until` has happened."""
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        tf1.get_variable("weights", [300_000], initializer=tf1.zeros_initializer())
        train = tf1.assign_add(step, 1)
        supervisor = procsv.Supervisor(logdir=str(logdir), summary_op=None, save_summaries_secs=0)
        with supervisor.managed_session() as session:
            while until not in order or "step" not in order:
                assert time.monotonic() < deadline_s, order
                session.run(train)
                order.append("step")
                pause.wait(0.01)


@pytest.mark.fault
def test_a_capture_is_warmed_up_before_the_first_step_and_slots_are_reserved_and_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    reserve, warm_up = SlotBackend.reserve, SlotBackend.warm_up

    def seen_reserve(way: SlotBackend) -> None:
        reserve(way)
        for path in way.pool.paths:
            assert path.stat().st_blocks * 512 >= path.stat().st_size >= 1_200_000, "memory that is not ours yet"
        order.append("reserved")

    def seen_warm_up(way: SlotBackend) -> None:
        warm_up(way)
        order.append("warm")

    monkeypatch.setattr(SlotBackend, "reserve", seen_reserve)
    monkeypatch.setattr(SlotBackend, "warm_up", seen_warm_up)

    _train(tmp_path / "logdir", order, until="warm")
    assert order.index("reserved") < order.index("warm") < order.index("step"), "a fresh session"
    assert order.count("reserved") == order.count("warm") == 1
    order.clear()
    _train(tmp_path / "logdir", order, until="reserved")
    assert order.index("warm") < order.index("step"), "a restored one"
    assert order.count("reserved") == order.count("warm") == 1, "behind the first steps, and once"
