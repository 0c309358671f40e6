"""The two ways for a snapshot to leave the trainer: a slot, or a checkpoint that the source writes.

The snapshotter decides when to capture, and calls a backend.  It starts with slots, if a slot can
hold the state.  If there is no shared memory for them, it uses the other backend from then on, and
logs that once.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from procsv.base.location import literal_path
from procsv.base.run.paths import make_private_dir
from procsv.base.system.disk import free_bytes
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.checkpoint_messages import Snapshot, Staged
from procsv.ipc.messaging.message import Message
from procsv.ipc.shm.slot_file import SLOTS_DEFAULT, NoRoom, SlotPool, SlotsLost, SlotWriter
from procsv.ipc.shm.slot_header import HEADER_BYTES
from procsv.training.runtime.context import current
from procsv.training.snapshots.slot_fill import fill_and_publish
from procsv.training.snapshots.snapshot_queue import Want
from procsv.training.snapshots.source import Captured, StateSource, StateSpec

PAGE_BYTES = 4096
TRIES_MAX = 3  # to get slots while another process removes their directory
SPARE_SHARE_MAX = 1 / 16  # of the free shared memory: reserve a spare slot of up to this size

declare("trainer.capture")


def always() -> bool:
    return True


class MemoryLoss(msgspec.Struct, frozen=True):
    """Snapshot memory that another process has removed."""

    path: Path
    is_alone: bool  # True: only `path` is gone.  False: its directory is, too, and the watchdog reports that


class SnapshotBackend:
    """One way to take a snapshot.

    `capture` runs while the training thread is between two calls, or in a call that cannot change
    the state.  It overlaps `reserve` only if the backend captures ahead.
    """

    def reserve(self) -> None:
        """Gets memory for captures without using the session; NoRoom on failure.

        This may take seconds.
        """

    def room_bytes(self) -> int:
        """The shared memory that this backend needs; 0 if it needs none."""
        return 0

    def captures_ahead(self) -> bool:
        """Whether the next capture can run now, before anything is reserved."""
        return False

    def find_loss(self) -> MemoryLoss | None:
        """Returns reserved memory that another process has removed; `reserve` replaces it."""
        return None

    def warm_up(self) -> None:
        """Does one-time work, so that the first snapshot costs no more than later ones."""

    def prepare_slot(self) -> None:
        """Does the part of the next `capture` that can run beside training.  Any thread."""

    def close(self) -> None:
        """Releases the slots, if the backend has any; their contents stay for other processes."""

    def capture(self, sequence: int, want: Want, is_whole: Callable[[], bool] = always) -> Callable[[], Message] | None:
        """Captures the state, and returns a function that copies it off the training thread.

        That function returns the message that announces the snapshot.  `capture` returns None if
        there is no room now, or if `is_whole`, called after the capture, says that the state may be
        torn.
        """
        raise NotImplementedError


@dataclass(slots=True)
class SlotBackend(SnapshotBackend):
    """Captures between two steps, copies in the background, publishes in shared memory."""

    pool: SlotPool
    source: StateSource
    target: str
    never: frozenset[str] = frozenset()  # the slots that this trainer restored from; never written
    _next: SlotWriter | None = None  # for the next capture, begun in advance
    _beginning: threading.Lock = field(default_factory=threading.Lock)  # guards `_next` and the choice of a slot
    _has_memory: bool = False  # a reservation has succeeded
    _is_ahead: bool = False  # a capture waits for the reservation
    _is_roomy: bool | None = None  # whether a reservation will probably succeed; None: not checked yet

    @property
    def _spec(self) -> StateSpec:
        assert self.source.spec is not None, "no slot can hold this state"
        return self.source.spec

    def reserve(self) -> None:
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(FileNotFoundError):  # another process is removing it
                return self._get_slots()
        return self._get_slots()

    def _get_slots(self) -> None:
        make_private_dir(self.pool.shm_dir)  # another process may have removed it
        with self._beginning:
            self._drop_next()  # its slot may be gone
        # With only two slots, no snapshot can be taken while the service saves one: the other slot
        # holds the newest snapshot and must stay.
        has_spare = self._size <= SPARE_SHARE_MAX * self._room()
        for memory in self.pool.reserve(self._size, SLOTS_DEFAULT + has_spare, never=self.never):
            # The first touch of a page is slow, so it must not happen in a step.
            np.frombuffer(memory, np.uint8)[HEADER_BYTES::PAGE_BYTES] = 0
        self._has_memory = True

    @property
    def _size(self) -> int:
        """Bytes of tensors and table of contents in a slot."""
        return self._spec.layout.end - HEADER_BYTES + self._spec.toc_size

    def _room(self) -> int:
        """Free bytes in the shared memory."""
        return free_bytes(self.pool.shm_dir)

    def room_bytes(self) -> int:
        # One extra: the slot that a trainer restores from stays while the trainer fills its own.
        return (SLOTS_DEFAULT + 1) * (HEADER_BYTES + self._size)

    def captures_ahead(self) -> bool:
        """True before slots are reserved, for one capture, which then waits for the reservation.

        Only if the source's captures need no slot, and shared memory probably has room for slots.
        """
        if self._has_memory or self._is_ahead or not self.source.captures_views:
            return False
        # Checked once, because the caller waits while a reservation is under way.
        if self._is_roomy is None:
            self._is_roomy = False
            with contextlib.suppress(FileNotFoundError):  # `reserve` makes the directory
                self._is_roomy = self._room() > SLOTS_DEFAULT * (HEADER_BYTES + self._size)
        return self._is_roomy

    def find_loss(self) -> MemoryLoss | None:
        lost = self.pool.find_lost()
        return MemoryLoss(lost[0], not self.pool.has_lost_directory()) if lost else None

    def warm_up(self) -> None:
        self.source.warm_up()

    def prepare_slot(self) -> None:
        with self._beginning:
            self._next = self._next or self.pool.begin_snapshot()

    def capture(self, sequence: int, want: Want, is_whole: Callable[[], bool] = always) -> Callable[[], Message] | None:
        """Returns None if no slot is free or slots are lost.

        The newest READY slot must stay, and a slot that the service reads is not free.
        """
        if self.captures_ahead():
            return self._capture_ahead(sequence, want, is_whole)
        if self.pool.find_lost():
            return None
        with self._beginning:
            writer, self._next = self._next or self.pool.begin_snapshot(), None
        if writer is None:
            return None
        failpoint("trainer.capture")
        try:
            captured = self.source.capture(writer.memory)
        except BaseException:
            writer.abandon()
            raise
        if not is_whole():
            writer.abandon()
            return None
        return lambda: self._publish(writer, captured, sequence, want)

    def _capture_ahead(self, sequence: int, want: Want, is_whole: Callable[[], bool]) -> Callable[[], Message] | None:
        """Captures views before there is a slot; publishing raises NoRoom if none comes."""
        failpoint("trainer.capture")
        captured = self.source.capture(None)
        if not is_whole():
            return None
        self._is_ahead = True

        def publish() -> Message:
            self._is_ahead = False
            with self._beginning:
                writer = self.pool.begin_snapshot()
            if writer is None:
                raise NoRoom(f"{self.pool.shm_dir} has no slot for a snapshot of {self._size} bytes")
            return self._publish(writer, captured, sequence, want)

        return publish

    def _publish(self, writer: SlotWriter, captured: Captured, sequence: int, want: Want) -> Message:
        try:
            info = fill_and_publish(writer, captured.spec or self._spec, captured, sequence, self.target)
        except BaseException:
            writer.abandon()
            raise
        if info.path in self.pool.find_lost():
            raise SlotsLost(f"{info.path} was removed while it was filled")
        return Snapshot(sequence, info.step, want)

    def close(self) -> None:
        self._drop_next()
        self.pool.close()

    def _drop_next(self) -> None:
        if self._next is not None:
            self._next.abandon()
            self._next = None


@dataclass(slots=True)
class StagingBackend(SnapshotBackend):
    """Has the source write a checkpoint on the training thread, which the service then takes over.

    Used for states that no slot can hold, and if there is no memory for slots.  It uses the first
    of `directories` (shared memory, then the logdir's disk) that has room.  One without room is not
    tried again.  The name of the staged directory contains sequence, attempt and run, so that a
    service that starts later does not mistake it for another attempt's.
    """

    source: StateSource
    directories: list[Path]
    run: str
    attempt: int

    def capture(self, sequence: int, want: Want, is_whole: Callable[[], bool] = always) -> Callable[[], Message] | None:
        step, runtime = self.source.read_step(), current()
        failures: tuple[type[Exception], ...] = (OSError, *self.source.errors)
        while True:
            directory = self.directories[0] / f"staged.{sequence}.{self.attempt}.{self.run}"
            try:
                if not directory.parent.exists():
                    make_private_dir(directory.parent)  # another process has removed it
                make_private_dir(directory)
                saving = contextlib.nullcontext() if runtime is None else runtime.heartbeat.saving()
                with saving, literal_path(str(directory)) as writable:
                    prefix = f"{directory}/{Path(self.source.save_to(Path(writable), step)).name}"
            except failures as failure:
                shutil.rmtree(directory, ignore_errors=True)
                if len(self.directories) == 1 or self.source.is_closed(failure):
                    raise
                del self.directories[0]
            else:
                if is_whole():
                    return lambda: Staged(prefix, sequence, step, want)
                shutil.rmtree(directory, ignore_errors=True)
                return None
