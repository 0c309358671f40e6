"""The last snapshot before a stop is taken beside a harmless call, discarded if it may be torn, and copied once."""

from __future__ import annotations

import threading

import pytest

from procsv.training.snapshots import snapshot_queue
from procsv.training.snapshots.snapshot_queue import SnapshotRequest
from tests.training.snapshots.snapshotter_world import HERE, NEWS_S_MAX, WORKER, World


def test_after_a_failing_call_nothing_is_captured_until_another_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    postpone_worker = snapshot_queue.SnapshotQueue.postpone_worker

    def note(queue: snapshot_queue.SnapshotQueue, now_s: float) -> None:
        postpone_worker(queue, now_s)
        looked.set()

    monkeypatch.setattr(snapshot_queue.SnapshotQueue, "postpone_worker", note)  # each time that the worker has come

    def fails() -> None:
        world.snapshotter.request(SnapshotRequest("periodic"))
        raise ValueError("in the middle of a step")

    with pytest.raises(ValueError, match="in the middle"):
        world.train(during=fails)
    for _ in range(2):
        looked.clear()
        assert world.backend.captured_by or looked.wait(NEWS_S_MAX)
    assert not world.backend.captured_by

    world.train()
    world.wait_told(1)
    assert world.backend.captured_by == [HERE]


def test_a_stop_takes_the_state_beside_a_call_that_changes_nothing(world: World) -> None:
    world.source.is_harmless = True

    def evaluate() -> None:
        world.snapshotter.request_stop_save("preempt")
        assert world.wait_told(1).want == "preempt"

    world.train(during=evaluate)
    assert world.backend.captured_by == [WORKER]


def test_a_stop_waits_for_the_end_of_a_call_that_may_change_the_state(world: World) -> None:
    looked = threading.Event()

    def may_change() -> bool:
        looked.set()
        return True

    world.source.may_change = may_change  # type: ignore[method-assign]

    def step() -> None:
        world.snapshotter.request_stop_save("preempt")
        assert looked.wait(NEWS_S_MAX)

    world.train(during=step)
    assert world.wait_told(1).step == 1
    assert world.backend.captured_by == [HERE]


def test_a_capture_beside_a_call_that_has_ended_meanwhile_is_discarded(world: World) -> None:
    world.source.is_harmless = True
    capturing, ended = threading.Event(), threading.Event()

    def during_capture() -> None:
        if threading.current_thread().name == WORKER and not ended.is_set():
            capturing.set()
            assert ended.wait(NEWS_S_MAX)

    def evaluate() -> None:
        world.snapshotter.request_stop_save("preempt")
        assert capturing.wait(NEWS_S_MAX)

    world.backend.during_capture = during_capture
    world.train(during=evaluate)
    ended.set()
    assert world.wait_told(1).step == 1, "the state after the call, not the torn one"


def test_the_last_state_is_copied_once_though_both_a_stop_and_the_end_request_it(world: World) -> None:
    world.train()
    world.backend.may_copy.clear()
    world.snapshotter.request_stop_save("preempt")
    let_go = threading.Timer(0.5, world.backend.may_copy.set)  # several times the stop's wait
    let_go.start()
    last = world.snapshotter.take_snapshot("preempt", reuses=True)
    let_go.join()
    world.save(last.sequence)
    assert world.snapshotter.wait_durable(last, NEWS_S_MAX)
    world.snapshotter.close()
    assert len(world.told) == len(world.backend.captured_by) == 1
