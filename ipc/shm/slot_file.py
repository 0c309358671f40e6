"""Write snapshot slots: files in shared memory that outlive the trainer that fills them.

`SlotPool` is the trainer's side: begin, fill, publish.  The checkpoint service and the next trainer
use slot_reader.py.  Only these two modules take a slot from one state to the next.  The header of a
slot names its owner: the task, and the attempt (`incarnation`) that uses the slot now.  No other
task writes to the slot, except parameter servers, which fill in tensors for the owner.

slot_header.py defines the file format, and slot_state.py the states and their rules.  In addition,
the owner holds an exclusive flock on the file while it writes a snapshot, and each reader holds a
shared one.  The owner writes the first header of a new file without a lock.  The kernel releases a
flock when the process that holds it dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path

import msgspec
import xxhash

from procsv.base.encoding import encode_msgpack
from procsv.base.identity import TaskId, attempt_name
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.shm.slot_header import HEADER_BYTES, STATE_AT, is_slot_of, pack_header, scan_slots, unpack_header
from procsv.ipc.shm.slot_index import Contents
from procsv.ipc.shm.slot_state import SlotEvent, SlotInfo, SlotState, next_state

SLOTS_DEFAULT = 2

declare("trainer.before_publish", "trainer.after_publish")


class NoRoom(Exception):
    """Shared memory cannot hold another slot of this size.  The text says how much is free."""


class SlotsLost(Exception):
    """A snapshot was written to a file that somebody has unlinked, so nobody will find it."""


class SlotWriter:
    """A slot in state WRITING.  Fill `memory` from HEADER_BYTES on, then publish or abandon it."""

    def __init__(self, pool: SlotPool, slot: _OwnSlot) -> None:
        self._pool = pool
        self._slot = slot

    @property
    def memory(self) -> mmap.mmap:
        return self._slot.map

    @property
    def path(self) -> Path:
        return self._slot.path

    def make_room(self, size: int) -> None:
        """Grows the slot to hold `size` bytes after the header; NoRoom if that is impossible.

        A slot that grows is mapped anew, so get `memory` again after this call.
        """
        self._slot.grow(HEADER_BYTES + size)

    def publish_slot(self, sequence: int, step: int, contents: Contents, end: int) -> SlotInfo:
        """Makes the slot READY.  `end`: the offset of the first byte after the tensors.

        The last write stores the new state.  If we are killed before it, the slot stays WRITING,
        that is, torn, and the older READY slot is still the newest snapshot.
        """
        next_state(self._slot.state, SlotEvent.TRAINER_PUBLISHES)  # check before a byte changes
        toc = encode_msgpack(contents)
        self._slot.grow(end + len(toc))
        self._slot.map[end : end + len(toc)] = toc
        info = SlotInfo(
            path=self._slot.path,
            state=SlotState.WRITING,
            task=self._pool.task,
            incarnation=self._pool.incarnation,
            sequence=sequence,
            step=step,
            run=self._pool.run,
            toc_offset=end,
            toc_size=len(toc),
            toc_hash=xxhash.xxh3_64_intdigest(toc),
        )
        head = pack_header(info)
        self._slot.map[: len(head)] = head
        failpoint("trainer.before_publish")
        self._slot.move(SlotEvent.TRAINER_PUBLISHES)
        self._slot.sequence = sequence
        self._slot.unlock()
        failpoint("trainer.after_publish")
        return msgspec.structs.replace(info, state=self._slot.state)

    def abandon(self) -> None:
        """Frees the slot without publishing it."""
        self._slot.move(SlotEvent.TRAINER_ABANDONS)
        self._slot.sequence = 0
        self._slot.unlock()


class _OwnSlot:
    """A slot file that this trainer writes."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._identity = os.fstat(fd)
        self.sequence = 0  # of the snapshot in the slot; 0 if the slot has no complete snapshot
        self.map = _map(fd, path)
        header = unpack_header(path, self.map[:HEADER_BYTES])
        self.state = header.state if header is not None else SlotState.WRITING  # an incomplete header counts as torn

    def is_in_place(self) -> bool:
        """Whether this file is still at its path: nobody has unlinked it or its directory."""
        return _is_at(self.path, self._identity)

    def lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        if self.fd >= 0:  # -1 if a signal handler has closed this slot during a capture, to end the training
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def move(self, event: SlotEvent) -> None:
        """Stores the state after `event`."""
        self.state = next_state(self.state, event)
        struct.pack_into("=I", self.map, STATE_AT, self.state)

    def grow(self, size: int) -> None:
        if size <= len(self.map):
            return
        reserve(self.fd, size, self.path)
        self.map = _map(self.fd, self.path)

    def close(self) -> None:
        self.unlock()  # explicitly, because the map holds a copy of the descriptor, and with it the lock
        os.close(self.fd)
        self.fd = -1


def _is_at(path: Path, info: os.stat_result) -> bool:
    """Whether the file at `path` is the one that `info` describes."""
    try:
        return os.path.samestat(info, path.stat())
    except OSError:
        return False


def reserve(fd: int, size: int, path: Path) -> None:
    """Allocates the memory of a file; NoRoom if there is not enough.

    Without the allocation the file would be sparse, and a write to it on a full filesystem would kill
    the writer with SIGBUS.
    """
    before = os.fstat(fd).st_size
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        # On a disk filesystem, unlike tmpfs, a failed allocation keeps the blocks that it got.
        os.ftruncate(fd, before)
        there = os.fstatvfs(fd)  # the path may have been unlinked
        raise NoRoom(
            f"{path.parent.parent} cannot hold a snapshot of {size} bytes ({error.strerror}; "
            f"{there.f_bavail * there.f_frsize} bytes are free)"
        ) from error


class SlotMap(mmap.mmap):
    """The memory of a slot that its owner fills.

    Other processes, such as parameter servers, find the file at `path` and fill it for the owner.
    """

    path: Path


def _map(fd: int, path: Path) -> SlotMap:
    try:
        memory = SlotMap(fd, 0)
    except OSError as error:  # the limit on this process's address space
        raise NoRoom(
            f"cannot map a snapshot of {os.fstat(fd).st_size} bytes in {path.parent}: {error.strerror}"
        ) from error
    memory.path = path
    return memory


class SlotPool:
    """The slots that one attempt of a task uses."""

    def __init__(self, shm_dir: Path, run: str, task: TaskId, incarnation: int) -> None:
        self.shm_dir = shm_dir
        self.run = run
        self.task = task
        self.incarnation = incarnation
        self._slots: list[_OwnSlot] = []
        self._directory: os.stat_result | None = None  # the directory when slots were last reserved

    @property
    def paths(self) -> list[Path]:
        return [slot.path for slot in self._slots]

    def find_lost(self) -> list[Path]:
        """Returns the slots that somebody has unlinked, alone or with their directory."""
        return [slot.path for slot in self._slots if not slot.is_in_place()]

    def has_lost_directory(self) -> bool:
        """Whether somebody has removed or replaced the directory since slots were reserved."""
        return self._directory is not None and not _is_at(self.shm_dir, self._directory)

    def reserve(self, size: int, count: int = SLOTS_DEFAULT, never: frozenset[str] = frozenset()) -> list[mmap.mmap]:
        """Adds slots until the pool has `count`; each new slot has room for `size` bytes of tensors.

        Returns the memory of the slots that it adds.  If there is no room for all, it removes the
        added slots and raises NoRoom.

        It first drops slots whose file somebody has unlinked.  Then it reuses slots of the task that
        are large enough and that no process has locked, because their memory is already allocated.
        An earlier attempt left them.  Only then does it create files.  It never reuses the task's
        newest READY slot, or a slot whose path is in `never`.  The caller puts the slots there from
        which this attempt has restored.
        """
        for slot in [slot for slot in self._slots if not slot.is_in_place()]:
            self._slots.remove(slot)
            slot.close()
        had = len(self._slots)
        self._directory = self.shm_dir.stat()
        ready = [info for info in scan_slots(self.shm_dir) if info.task == self.task]
        keep = never | {str(info.path) for info in ready[:1]} | {str(path) for path in self.paths}
        try:
            for path in sorted(path for path in self.shm_dir.glob("slot.*") if is_slot_of(self.task, path)):
                if len(self._slots) < count and str(path) not in keep:
                    self._adopt(path, HEADER_BYTES + size)
            number = 0
            while len(self._slots) < count:
                name = f"slot.{attempt_name(self.task, self.incarnation)}.{number}"
                self._create(self.shm_dir / name, HEADER_BYTES + size)
                number += 1
        except NoRoom:
            for slot in self._slots[had:]:
                slot.path.unlink(missing_ok=True)
                slot.close()
            del self._slots[had:]
            raise
        return [slot.map for slot in self._slots[had:]]

    def _adopt(self, path: Path, size: int) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_size < size or not os.path.samestat(os.fstat(fd), path.stat()):
                raise BlockingIOError  # too small, or unlinked after we opened it: leave it
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return
        try:
            self._add(path, fd)
        except NoRoom:
            os.close(fd)
            raise

    def _create(self, path: Path, size: int) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        try:
            reserve(fd, size, path)
            self._add(path, fd)
        except NoRoom:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise

    def _add(self, path: Path, fd: int) -> None:
        """Adds a slot file that we have locked or just created, and writes our header to it.

        The header names this attempt as the owner, so the checkpoint service does not remove the slot.
        """
        slot = _OwnSlot(path, fd)
        slot.move(SlotEvent.NEXT_TRAINER_ADOPTS)
        self._mark(slot)
        slot.unlock()
        self._slots.append(slot)

    def _mark(self, slot: _OwnSlot) -> None:
        """Writes a header that names us as the owner and says that the slot is empty.

        A kill in the middle leaves a torn header, which nobody reads.
        """
        head = pack_header(
            SlotInfo(
                path=slot.path,
                state=slot.state,
                task=self.task,
                incarnation=self.incarnation,
                sequence=0,
                step=-1,
                run=self.run,
                toc_offset=0,
                toc_size=0,
                toc_hash=0,
            )
        )
        slot.map[: len(head)] = head

    def begin_snapshot(self) -> SlotWriter | None:
        """Returns a slot to fill, never the newest READY one.

        None if a process reads or writes each of the other slots.
        """
        newest = max((slot.sequence for slot in self._slots), default=0)
        for slot in sorted(self._slots, key=lambda slot: slot.sequence):  # empty slots first, then the oldest
            may_overwrite = slot.state is not SlotState.WRITING and (slot.sequence == 0 or slot.sequence < newest)
            if may_overwrite and slot.lock():
                slot.move(SlotEvent.TRAINER_BEGINS)
                # The header's hash does not cover the state.  So if the state were corrupted to READY, the old header
                # would still be valid, and the slot would count as the old snapshot.
                self._mark(slot)
                slot.sequence = 0
                return SlotWriter(self, slot)
        return None

    def close(self) -> None:
        """Closes the files; they and their contents stay."""
        for slot in self._slots:
            slot.close()
        self._slots = []

    def unlink(self) -> None:
        """Removes this pool's slots.  Only for slots whose contents nobody needs any more."""
        for slot in self._slots:
            slot.path.unlink(missing_ok=True)
        self.close()
