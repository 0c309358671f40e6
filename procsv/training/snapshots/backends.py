"""The two ways in which a snapshot leaves the trainer: through a slot, or as a checkpoint that the source writes itself.

Called by the snapshotter, which decides when.  A run takes one way, chosen at its start and logged once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from procsv.base.location import literal_path
from procsv.base.run.paths import make_private_dir
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
TRIES_MAX = 3  # to get slots while somebody removes their directory
SPARE_SHARE_MAX = 1 / 16  # of the free shared memory: a spare slot up to this size is reserved

declare("trainer.capture")


def always() -> bool:
    return True


class MemoryLoss(msgspec.Struct, frozen=True):
    """What somebody has removed of the memory for snapshots."""

    path: Path
    is_alone: bool  # else its directory is gone too, of which the watchdog tells


class SnapshotBackend:
    """How a snapshot is taken.  `capture` runs with the training thread between two calls; beside `reserve` only ahead of it."""

    def reserve(self) -> None:
        """Gets the memory that is needed; NoRoom if it cannot be had.  May take seconds; needs no session."""

    def room_bytes(self) -> int:
        """The shared memory that it takes; 0: none."""
        return 0

    def captures_ahead(self) -> bool:
        """Whether the next capture can be made now though nothing has been reserved yet."""
        return False

    def find_loss(self) -> MemoryLoss | None:
        """What of that memory somebody has removed since: `reserve` gets it anew."""
        return None

    def warm_up(self) -> None:
        """Makes the first snapshot cost what the others do."""

    def prepare_slot(self) -> None:
        """Does what of the next `capture` can be done while training goes on.  Any thread."""

    def close(self) -> None:
        """Lets go of the source."""

    def capture(self, sequence: int, want: Want, is_whole: Callable[[], bool] = always) -> Callable[[], Message] | None:
        """Takes the state; what it returns finishes the work off the training thread and gives the message.

        None if there is no room for it now, or if `is_whole`, asked when it is taken, says that it may be torn.
        """
        raise NotImplementedError


@dataclass(slots=True)
class SlotBackend(SnapshotBackend):
    """Captures between two steps, copies in the background, publishes in shared memory."""

    pool: SlotPool
    source: StateSource
    target: str
    never: frozenset[str] = frozenset()  # slots that the state came from: never to be written
    _next: SlotWriter | None = None  # begun ahead of its capture
    _beginning: threading.Lock = field(default_factory=threading.Lock)
    _has_memory: bool = False  # has reserved once
    _is_ahead: bool = False  # a capture waits for that
    _is_roomy: bool | None = None  # whether it will succeed, as far as one can see

    @property
    def _spec(self) -> StateSpec:
        assert self.source.spec is not None, "no slot can hold this state"
        return self.source.spec

    def reserve(self) -> None:
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(FileNotFoundError):  # it is being removed just now
                return self._get_slots()
        return self._get_slots()

    def _get_slots(self) -> None:
        make_private_dir(self.pool.shm_dir)  # somebody may have removed it under the run
        with self._beginning:
            self._drop_next()  # its slot may be one of those that are gone
        # With two, no snapshot can be taken while the service saves one, as the other is the newest and must stay.
        has_spare = self._size <= SPARE_SHARE_MAX * self._room()
        for memory in self.pool.reserve(self._size, SLOTS_DEFAULT + has_spare, never=self.never):
            np.frombuffer(memory, np.uint8)[HEADER_BYTES::PAGE_BYTES] = 0  # the first touch is slow: not in a step
        self._has_memory = True

    @property
    def _size(self) -> int:
        """Bytes of tensors and table of contents in a slot."""
        return self._spec.layout.end - HEADER_BYTES + self._spec.toc_size

    def _room(self) -> int:
        """Bytes that are free in the shared memory."""
        there = os.statvfs(self.pool.shm_dir)
        return there.f_bavail * there.f_frsize

    def room_bytes(self) -> int:
        return (SLOTS_DEFAULT + 1) * (
            HEADER_BYTES + self._size
        )  # one is for a trainer that restores, while the next fills its own

    def captures_ahead(self) -> bool:
        """Once, if the source's captures need no slot, and there will be slots as far as one can see."""
        if self._has_memory or self._is_ahead or not self.source.captures_views:
            return False
        if self._is_roomy is None:  # asked once: the call waits for a reservation that is under way
            self._is_roomy = False
            with contextlib.suppress(FileNotFoundError):  # the directory is made when it is reserved
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
        """None if the service still reads every slot but the newest READY one, or if slots are lost."""
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
        """Views, for a slot of those that are being reserved; NoRoom when it is published if none could be had."""
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
    """The source writes a checkpoint on the training thread, into a directory that the checkpoint service takes over.

    For states that no slot can hold, and where no slot can be had.  The directory lies in the first of `directories` that
    has room (shared memory, then the logdir's disk), and one that had none is not tried again.  `attempt`, of which run, is in
    its name beside the sequence: a service that starts later must not take it for another attempt's.
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
                    make_private_dir(directory.parent)  # somebody has removed it under the run
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
