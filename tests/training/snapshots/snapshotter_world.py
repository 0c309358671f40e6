"""A snapshotter with a source that is one number, a backend that counts and locks that are watched."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from procsv.base.clock import Clock
from procsv.base.journal.entries import AnyEntry
from procsv.base.run.manifest import Reason
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import Durable, Snapshot
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.heartbeat import Snapshots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.training.runtime.context import Runtime, SnapshotNumbers
from procsv.training.snapshots.backends import MemoryLoss, SnapshotBackend, always
from procsv.training.snapshots.boundary import Boundary
from procsv.training.snapshots.cadence import Cadence
from procsv.training.snapshots.snapshot_queue import SnapshotRequest, Want
from procsv.training.snapshots.snapshot_state import SnapshotState
from procsv.training.snapshots.snapshotter import Snapshotter
from procsv.training.snapshots.source import Captured, StateSource, StateSpec

NEWS_S_MAX = 300.0
PINNED = SnapshotRequest("periodic", pinned=True, until=SnapshotState.CAPTURED)


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
    """Counts its calls and records their threads."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.slots = 9  # free slots
        self.room = 0  # their size in bytes
        self.failures: list[BaseException] = []  # errors of the next captures
        self.copy_failures: list[Exception] = []
        self.lost: list[Path] = []  # lost memory, until it is reserved again
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.during_capture: Callable[[], object] = lambda: None
        self.may_reserve = threading.Event()
        self.may_reserve.set()
        self.is_asked_for_memory = threading.Event()
        self.is_ahead_of_memory = False
        self.captured_by: list[str] = []
        self.copied_by: list[str] = []

    def reserve(self) -> None:
        self.is_asked_for_memory.set()
        assert self.may_reserve.wait(NEWS_S_MAX)
        self.lost.clear()

    def room_bytes(self) -> int:
        return self.room

    def captures_ahead(self) -> bool:
        return self.is_ahead_of_memory

    def find_loss(self) -> MemoryLoss | None:
        return MemoryLoss(self.lost[0], is_alone=True) if self.lost else None

    def warm_up(self) -> None: ...
    def prepare_slot(self) -> None: ...
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
    """The boundary's lock, which must never be acquired while the snapshotter's is held."""

    def __init__(self, changed: threading.Condition) -> None:
        self._lock, self.changed = threading.Lock(), changed
        self.wrong: list[str] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if cast(Any, self.changed)._is_owned():
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
    """A training thread (the test's), a snapshotter, and a checkpoint service played by the test."""

    def __init__(self, has_memory: bool = True) -> None:
        self.source = Source()
        self.backend, self.fallback = Backend(self.source), Backend(self.source)
        if not has_memory:
            self.backend.may_reserve.clear()
        self.boundary = Boundary(self._visit)
        # The parts of a Runtime that a snapshotter needs.
        self.clock: Clock = SystemClock()
        self.connection = self.heartbeat = self.stops = self.link = self
        self.numbers, self.step, self.reason = SnapshotNumbers(), 0, cast("Reason | None", None)
        self.told = list[Snapshot]()
        self.noted = list[tuple[str, object]]()
        self._news = threading.Condition()
        backends, self.cadence = (self.backend, self.fallback), Cadence(0.01)
        self.snapshotter = Snapshotter(cast(Runtime, self), self.boundary, self.source, backends, self.cadence)
        self.lock = OrderedLock(self.snapshotter.changed)
        self.boundary.lock = cast(threading.Lock, self.lock)
        self.snapshotter.start_worker()

    def _visit(self) -> None:
        self.boundary.due = False
        self.snapshotter.capture_due()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        yield

    def why_lost(self, role: str) -> str:
        return ""

    def show_snapshots(self, snapshots: Snapshots) -> None: ...

    def note_entry(self, entry: AnyEntry) -> None:
        fields = msgspec.to_builtins(entry)
        self.noted.append((fields["event"], fields.get("what", fields.get("error", ""))))

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


HERE = threading.current_thread().name
WORKER = "procsv-snapshots"
