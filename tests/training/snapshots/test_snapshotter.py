"""The snapshotter's threads share the work correctly: who captures, copies and waits, and the order of locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from procsv.ipc.messaging.checkpoint_messages import SaveFailed
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots import snapshot_queue, snapshotter
from procsv.training.snapshots.snapshot_queue import Record, SnapshotRequest
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.snapshot_worker import GuardedQueue, SnapshotMemory
from tests.support.naming import Naming
from tests.support.programs import until
from tests.training.snapshots.snapshotter_world import HERE, NEWS_S_MAX, PINNED, WORKER, Backend, World


def test_only_the_worker_copies_what_is_captured_at_the_boundary(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_queue, "PATIENCE_S", NEWS_S_MAX)  # however late the boundary comes
    world.train(during=lambda: world.snapshotter.request(PINNED))
    assert world.wait_told(1).step == 1, "the state at the end of the call"
    world.save(1)
    world.snapshotter.take_snapshot("final")
    assert world.backend.captured_by == [HERE, HERE]
    assert world.backend.copied_by == [WORKER, WORKER]
    assert [(told.sequence, told.want) for told in world.told] == [(1, "periodic"), (2, "final")]


def test_training_goes_on_while_a_snapshot_is_copied(world: World) -> None:
    world.backend.may_copy.clear()
    world.train(during=lambda: world.snapshotter.request(PINNED))
    world.train()
    world.train()
    assert (world.source.step, world.told) == (3, [])
    world.backend.may_copy.set()
    assert world.wait_told(1).step == 1


def test_periodic_snapshots_are_captured_at_the_boundary_or_by_the_worker_between_two_calls(world: World) -> None:
    published = threading.Event()
    world.snapshotter.start_cadence(lambda told: published.set())
    assert world.wait_told(1).want == ""
    assert world.backend.captured_by[0] == WORKER, "no call came by"
    assert published.wait(NEWS_S_MAX)
    while HERE not in world.backend.captured_by:
        world.train()
    world.snapshotter.stop_cadence()


def test_a_pinned_snapshot_waits_for_a_slot_within_its_call(world: World) -> None:
    world.backend.slots = 0
    freed = threading.Timer(0.3, setattr, (world.backend, "slots", 1))
    freed.start()
    world.train(during=lambda: world.snapshotter.request(PINNED))
    freed.join()
    assert world.wait_told(1).step == 1


def test_an_unpinned_snapshot_never_delays_the_training(world: World) -> None:
    world.backend.slots = 0
    world.train(during=lambda: world.snapshotter.request(SnapshotRequest("periodic")))
    assert world.snapshotter.owes
    world.backend.slots = 1
    while world.snapshotter.owes:
        world.train()
    assert world.wait_told(1).want == "periodic"


def test_neither_the_next_nor_a_periodic_snapshot_overtakes_a_pinned_one(world: World) -> None:
    world.train(during=lambda: world.snapshotter.request(PINNED))
    world.wait_told(1)
    world.snapshotter.start_cadence()
    freed = threading.Timer(0.3, world.save, (1,))

    def ask() -> None:
        world.snapshotter.request(PINNED)
        freed.start()

    world.train(during=ask)
    freed.join()
    assert [world.wait_told(number).step for number in (1, 2)] == [1, 2]
    assert [told.want for told in world.told[:2]] == ["periodic", "periodic"], (
        "the cadence has passed over a pinned one"
    )


def test_a_call_that_waits_for_its_checkpoint_ends_once_that_is_durable_or_has_failed(world: World) -> None:
    waits = SnapshotRequest("periodic", pinned=True, until=SnapshotState.DURABLE)
    answered = list[int]()

    def answer(number: int, end: Callable[[], None]) -> None:
        world.wait_told(number)
        answered.append(number)
        end()

    ends = (lambda: world.save(1), lambda: world.snapshotter.on_failed(SaveFailed(2, 0, "no")))
    for number, end in enumerate(ends, start=1):
        service = threading.Thread(target=answer, args=(number, end))
        service.start()
        world.train(during=lambda: world.snapshotter.request(waits))
        assert answered[-1:] == [number]
        service.join()
    assert [told.step for told in world.told] == [1, 2]


def test_a_failure_reaches_its_waiter_and_is_logged_if_there_is_none(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.backend.failures = [OSError("first")]
    with pytest.raises(OSError, match="first"):
        world.snapshotter.take_snapshot("final")
    world.backend.copy_failures = [OSError("second")]
    with pytest.raises(OSError, match="second"):
        world.snapshotter.take_snapshot("final")
    assert not caplog.records
    world.backend.failures = [OSError("third")]
    world.train(during=lambda: world.snapshotter.request(PINNED))
    assert [record.getMessage() for record in caplog.records] == [Naming("this step", ": third")]


def test_a_closed_source_ends_the_periodic_snapshots_silently(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.backend.failures = [RuntimeError("Attempted to use a closed Session.")] * 9
    world.snapshotter.start_cadence()
    deadline = threading.Event()
    while len(world.backend.failures) == 9:
        deadline.wait(0.01)
    with world.snapshotter.changed:
        queue = world.snapshotter.queue
        assert world.snapshotter.changed.wait_for(lambda: queue.wakes_s(0.0) == queue.check_s, NEWS_S_MAX)
    assert not caplog.records


def test_closing_publishes_what_is_captured_and_refuses_the_rest(world: World) -> None:
    world.backend.may_copy.clear()
    world.train(during=lambda: world.snapshotter.request(PINNED))
    closing = threading.Thread(target=world.snapshotter.close)
    closing.start()
    world.backend.may_copy.set()
    closing.join(NEWS_S_MAX)
    assert [told.step for told in world.told] == [1]
    with pytest.raises(RuntimeError, match="closed"):
        world.snapshotter.take_snapshot("final")


def test_nobody_waits_for_a_worker_that_has_died(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    monkeypatch.setattr(world.backend, "prepare_slot", lambda: [][1])  # a bug of ours
    world.snapshotter.start_cadence()
    assert died.wait(NEWS_S_MAX)
    with pytest.raises(RuntimeError, match="ended"):
        world.snapshotter.take_snapshot("final")


def test_failing_snapshots_are_reported_once_for_each_change_of_the_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_queue, "PATIENCE_S", NEWS_S_MAX)  # the worker reports its findings in its own time
    world.backend.failures = [OSError(text) for text in ("no room for 1 bytes", "no room for 2 bytes", "broken")]
    for _ in range(3):
        with pytest.raises(OSError, match=r"no room|broken"):
            world.snapshotter.take_snapshot("final")
    assert world.noted == [("snapshot_failed", "no room for 1 bytes"), ("snapshot_failed", "broken")]
    world.snapshotter.take_snapshot("final")
    pause = threading.Event()
    until(lambda: world.noted[2:] == [("snapshots_resumed", "")], lambda: pause.wait(0.01))  # after its publication
    world.backend.failures = [OSError("broken")]
    with pytest.raises(OSError, match="broken"):
        world.snapshotter.take_snapshot("final")
    assert world.noted[3:] == [("snapshot_failed", "broken")]


def test_a_save_by_a_signal_handler_within_a_capture_fails_at_once_and_the_capture_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotter, "WAIT_S_MAX", 0.2)
    records = list[Record]()

    def handle_signal() -> None:
        world.backend.during_capture = lambda: None
        records.append(world.snapshotter.capture_async("manual"))
        with pytest.raises(RuntimeError, match="signal"):
            world.snapshotter.take_snapshot("final")

    world.backend.during_capture = handle_signal
    world.train(during=lambda: world.snapshotter.request(PINNED))
    assert "signal" in str(records[0].failure)
    assert world.wait_told(1).want == "periodic"
    world.snapshotter.take_snapshot("final")
    assert world.wait_told(2).want == "final"


def test_a_signal_handler_within_a_reservation_of_memory_does_not_wait_for_it(world: World) -> None:
    class Interrupted(Backend):
        def reserve(self) -> None:
            memory.reserve()

    backends = (Interrupted(world.source), world.fallback)
    memory = SnapshotMemory(cast(Runtime, world), world.source, backends, world.cadence, GuardedQueue(world.cadence))
    thread = threading.Thread(target=memory.reserve, daemon=True)
    thread.start()
    thread.join(NEWS_S_MAX)
    assert not thread.is_alive()
