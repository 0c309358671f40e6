"""The snapshotter's threads: who captures, who copies, who waits, and in which order locks are taken."""

from __future__ import annotations

import contextlib
import logging
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from procsv.base.clock import Clock
from procsv.base.run.manifest import Reason
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.messages import Durable, Message, SaveFailed, Snapshot
from procsv.ipc.shm.heartbeat import Snapshots
from procsv.ipc.shm.slot_file import NoRoom, SlotsLost
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.runtime.context import Runtime
from procsv.training.snapshots import snapshot_queue
from procsv.training.snapshots.backends import Loss, SnapshotBackend, always
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_queue import SnapshotRequest, Want
from procsv.training.snapshots.snapshot_state import State
from procsv.training.snapshots.snapshotter import Snapshotter
from procsv.training.snapshots.source import Captured, StateSource, StateSpec

NEWS_S_MAX = 300.0
PINNED = SnapshotRequest("periodic", pinned=True, until=State.CAPTURED)


class Source(StateSource):
    """A state that is one number, the step."""

    spec: StateSpec | None = None
    errors: tuple[type[Exception], ...] = (RuntimeError,)

    def __init__(self) -> None:
        self.step, self.is_harmless = 0, False

    def attach(self, boundary: Boundary) -> None: ...
    def warm_up(self) -> None: ...
    def capture(self, into: mmap.mmap | None) -> Captured: ...  # type: ignore[empty-body]  # the backend here asks for the step alone
    def restore(self, state: SlotReader | str) -> None: ...
    def close(self) -> None: ...

    def save_to(self, directory: Path, step: int) -> str:
        return ""

    def read_step(self) -> int:
        return self.step

    def may_change(self) -> bool:
        return not self.is_harmless

    def is_closed(self, error: Exception) -> bool:
        return "closed" in str(error)


class Backend(SnapshotBackend):
    """Counts what it is asked for, and by which threads."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.slots = 9  # that are free
        self.failures: list[BaseException] = []  # of the captures to come
        self.copy_failures: list[Exception] = []
        self.lost: list[Path] = []  # of its memory, until it gets it anew
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.during_capture: Callable[[], object] = lambda: None
        self.may_reserve = threading.Event()
        self.may_reserve.set()
        self.is_ahead_of_memory = False
        self.captured_by: list[str] = []
        self.copied_by: list[str] = []

    def reserve(self) -> None:
        assert self.may_reserve.wait(NEWS_S_MAX)
        self.lost.clear()

    def captures_ahead(self) -> bool:
        return self.is_ahead_of_memory

    def find_loss(self) -> Loss | None:
        return Loss(self.lost[0], is_alone=True) if self.lost else None

    def warm_up(self) -> None: ...
    def prepare(self) -> None: ...
    def close(self) -> None: ...

    def capture(self, sequence: int, want: Want, is_whole: Callable[[], bool] = always) -> Callable[[], Message] | None:
        if self.failures:
            raise self.failures.pop(0)
        if not self.slots or self.lost:
            return None
        step = self.source.step
        self.during_capture()
        if not is_whole():
            return None
        self.captured_by.append(threading.current_thread().name)
        return lambda: self._finish(sequence, step, want)

    def _finish(self, sequence: int, step: int, want: Want) -> Message:
        assert self.may_copy.wait(NEWS_S_MAX)
        self.copied_by.append(threading.current_thread().name)
        if self.copy_failures:
            raise self.copy_failures.pop(0)
        return Snapshot(sequence, step, want)


class OrderedLock:
    """The boundary's lock, which must never be asked for while the snapshotter's is held."""

    def __init__(self, changed: threading.Condition) -> None:
        self._lock, self._changed = threading.Lock(), changed
        self.wrong: list[str] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if cast(Any, self._changed)._is_owned():
            self.wrong.append(threading.current_thread().name)
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class World:
    """A training thread (the test's), a snapshotter, and a checkpoint service that the test speaks for."""

    def __init__(self, has_memory: bool = True) -> None:
        self.source = Source()
        self.backend, self.fallback = Backend(self.source), Backend(self.source)
        if not has_memory:
            self.backend.may_reserve.clear()
        self.boundary = Boundary(self._visit)
        # Of a Runtime, what a snapshotter needs.
        self.clock: Clock = SystemClock()
        self.link, self.step, self.sequence, self.stop_reason = self, 0, 0, cast("Reason | None", None)
        self.snapshots = Snapshots()
        self.told = list[Snapshot]()
        self.noted = list[tuple[str, object]]()
        self._news = threading.Condition()
        backends = (self.backend, self.fallback)
        self.snapshotter = Snapshotter(cast(Runtime, self), self.boundary, self.source, backends, Cadence(0.01))
        self.lock = OrderedLock(self.snapshotter._changed)
        self.boundary.lock = cast(threading.Lock, self.lock)
        self.snapshotter.start_worker()

    def _visit(self) -> None:
        self.boundary.due = False
        self.snapshotter.visit()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        yield

    def why_lost(self, role: str) -> str:
        return ""

    def note(self, event: str, **fields: object) -> None:
        self.noted.append((event, fields.get("what", fields.get("error", ""))))

    def tell_checkpoint(self, body: Message) -> None:
        assert isinstance(body, Snapshot)
        with self._news:
            self.told.append(body)
            self._news.notify_all()

    def wait_told(self, number: int) -> Snapshot:
        with self._news:
            assert self._news.wait_for(lambda: len(self.told) >= number, NEWS_S_MAX)
            return self.told[number - 1]

    def train(self, during: Callable[[], object] = lambda: None) -> None:
        def step() -> None:
            during()
            self.source.step += 1

        self.boundary.pass_call(step)

    def save(self, sequence: int) -> None:
        self.snapshotter.on_durable(Durable(sequence, 0, 1, "path", "periodic", 0, 0.0, ()))


def test_a_capture_that_needs_no_memory_does_not_wait_for_it_and_is_copied_when_it_is_there() -> None:
    world = World(has_memory=False)
    world.backend.is_ahead_of_memory = True
    world.snapshotter.reserve_early()
    record = world.snapshotter.capture_async("manual")
    assert (record.state, record.failure, world.backend.captured_by) == (State.CAPTURED, None, [HERE])
    world.backend.is_ahead_of_memory = False
    world.train(during=lambda: world.snapshotter.request(SnapshotRequest("periodic")))
    assert (world.source.step, world.backend.captured_by) == (1, [HERE]), "the next one needs memory"
    assert not world.told
    world.backend.may_reserve.set()
    assert world.wait_told(1).step == 0
    world.snapshotter.close()
    assert world.backend.copied_by[0] == WORKER


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(snapshot_queue, "PATIENCE_S", 0.05)
    monkeypatch.setattr(snapshot_queue, "STOP_PATIENCE_S", 0.1)
    world = World()
    yield world
    world.backend.may_copy.set()
    world.snapshotter.close()
    assert not world.lock.wrong, "boundary.lock was asked for with the snapshotter's lock held"


HERE = threading.current_thread().name
WORKER = "procsv-snapshots"


def test_what_is_captured_at_the_boundary_is_copied_by_the_worker_alone(world: World) -> None:
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


def test_snapshots_by_the_cadence_are_captured_at_the_boundary_or_by_the_worker_between_two_calls(world: World) -> None:
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


def test_what_is_not_pinned_never_holds_up_the_training(world: World) -> None:
    world.backend.slots = 0
    world.train(during=lambda: world.snapshotter.request(SnapshotRequest("periodic")))
    assert world.snapshotter.owes
    world.backend.slots = 1
    while world.snapshotter.owes:
        world.train()
    assert world.wait_told(1).want == "periodic"


def test_a_pinned_snapshot_is_passed_over_neither_by_the_next_nor_by_the_cadence(world: World) -> None:
    world.train(during=lambda: world.snapshotter.request(PINNED))
    world.wait_told(1)
    world.snapshotter.start_cadence()
    freed = threading.Timer(0.3, world.save, (1,))
    freed.start()
    world.train(during=lambda: world.snapshotter.request(PINNED))
    freed.join()
    assert [world.wait_told(number).step for number in (1, 2)] == [1, 2]
    assert [told.want for told in world.told[:2]] == ["periodic", "periodic"], (
        "the cadence has passed over a pinned one"
    )


def test_a_call_that_waits_for_its_checkpoint_ends_when_that_is_durable_or_has_failed(world: World) -> None:
    waits = SnapshotRequest("periodic", pinned=True, until=State.DURABLE)
    for end in (lambda: world.save(1), lambda: world.snapshotter.on_failed(SaveFailed(2, 0, "no"))):
        answer = threading.Timer(0.2, end)
        answer.start()
        world.train(during=lambda: world.snapshotter.request(waits))
        assert not answer.is_alive() or answer.finished.is_set()
        answer.join()
    assert [told.step for told in world.told] == [1, 2]


def test_after_a_call_that_has_raised_nothing_is_captured_until_one_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    missed = snapshot_queue.SnapshotQueue.missed

    def note(queue: snapshot_queue.SnapshotQueue, now_s: float) -> None:
        missed(queue, now_s)
        looked.set()

    monkeypatch.setattr(snapshot_queue.SnapshotQueue, "missed", note)  # each time that the worker has come

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


def test_what_was_captured_beside_a_call_that_has_ended_meanwhile_is_thrown_away(world: World) -> None:
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


def test_the_last_state_is_copied_once_though_a_stop_and_the_end_ask_for_it(world: World) -> None:
    world.train()
    world.backend.may_copy.clear()
    world.snapshotter.request_stop_save("preempt")
    let_go = threading.Timer(0.5, world.backend.may_copy.set)  # several times as long as the stop waits
    let_go.start()
    last = world.snapshotter.take_snapshot("preempt", reuses=True)
    let_go.join()
    world.save(last.sequence)
    assert world.snapshotter.wait_durable(last, NEWS_S_MAX)
    world.snapshotter.close()
    assert len(world.told) == len(world.backend.captured_by) == 1


def test_without_room_the_fallback_takes_over_said_once_and_nobody_who_waits_notices(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.backend.copy_failures = [NoRoom("64 MB"), NoRoom("64 MB")]
    with caplog.at_level(logging.WARNING, "procsv"):
        assert world.snapshotter.take_snapshot("final").state is State.PUBLISHED
        world.snapshotter.take_snapshot("final")
    assert len(world.backend.captured_by) == 1
    assert len(world.fallback.captured_by) == 2
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["no snapshots in memory"]


def test_a_failure_is_heard_by_who_waits_and_logged_where_nobody_does(
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
    assert [record.getMessage() for record in caplog.records] == ["no checkpoint of this step, training goes on: third"]


def test_a_closed_source_ends_the_cadence_without_a_word(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.backend.failures = [RuntimeError("Attempted to use a closed Session.")] * 9
    world.snapshotter.start_cadence()
    deadline = threading.Event()
    while len(world.backend.failures) == 9:
        deadline.wait(0.01)
    with world.snapshotter._changed:
        queue = world.snapshotter._queue
        assert world.snapshotter._changed.wait_for(lambda: queue.wakes_s(0.0) == queue.look_s, NEWS_S_MAX)
    assert not caplog.records


def test_closing_publishes_what_is_captured_and_refuses_what_is_not(world: World) -> None:
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
    monkeypatch.setattr(world.backend, "prepare", lambda: [][1])  # a bug of ours
    world.snapshotter.start_cadence()
    assert died.wait(NEWS_S_MAX)
    with pytest.raises(RuntimeError, match="ended"):
        world.snapshotter.take_snapshot("final")


def test_memory_that_was_removed_is_had_anew_and_what_is_not_durable_captured_again(world: World) -> None:
    world.train()
    last = world.snapshotter.take_snapshot("final")
    world.train()
    world.backend.lost.append(Path("slot.1.0"))
    world.snapshotter.on_failed(SaveFailed(last.sequence, 1, "the snapshot is gone"))
    assert (world.wait_told(2).step, world.told[1].want) == (2, "final")
    assert world.noted == [("ground_lost", "slot"), ("ground_restored", "slot")]
    world.save(last.sequence)
    assert world.snapshotter.wait_durable(last, NEWS_S_MAX)


def test_memory_that_is_removed_while_it_is_filled_is_had_anew_and_the_state_captured_again(world: World) -> None:
    world.backend.may_copy.clear()
    world.backend.copy_failures = [SlotsLost("slot.1.0 is gone")]
    world.train(during=lambda: world.snapshotter.request(PINNED))
    world.backend.lost.append(Path("slot.1.0"))
    world.backend.may_copy.set()
    world.train()
    assert (world.wait_told(1).step, len(world.told)) == (2, 1)


def test_snapshots_by_the_cadence_go_on_when_memory_was_removed_and_no_call_comes_by(world: World) -> None:
    world.snapshotter.start_cadence()
    world.wait_told(1)
    world.backend.lost.append(Path("slot.1.0"))
    assert world.wait_told(len(world.told) + 2).want == ""
    world.snapshotter.stop_cadence()


def test_snapshots_that_fail_are_told_once_for_each_change_of_what_is_wrong(world: World) -> None:
    world.backend.failures = [OSError(text) for text in ("no room for 1 bytes", "no room for 2 bytes", "broken")]
    for _ in range(3):
        with pytest.raises(OSError, match=r"no room|broken"):
            world.snapshotter.take_snapshot("final")
    assert world.noted == [("snapshot_failed", "no room for 1 bytes"), ("snapshot_failed", "broken")]
    world.snapshotter.take_snapshot("final")
    world.backend.failures = [OSError("broken")]
    with pytest.raises(OSError, match="broken"):
        world.snapshotter.take_snapshot("final")
    assert world.noted[2:] == [("snapshots_resumed", ""), ("snapshot_failed", "broken")]
