"""Read, verify and remove snapshot slots of other processes.

The checkpoint service and the next trainer use it.  A reader never writes to a slot.  It maps the
slot privately, and holds a shared flock that keeps the owner from writing.  The kernel releases the
flock when the reader dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import xxhash

from procsv.base.encoding import decode_msgpack
from procsv.base.errors import PeerError
from procsv.base.system import progress_counter
from procsv.ipc.shm.slot_header import HEADER_BYTES, unpack_header
from procsv.ipc.shm.slot_index import Contents, TensorEntry
from procsv.ipc.shm.slot_state import SlotEvent, SlotInfo, next_state

_DECODER = msgspec.msgpack.Decoder(Contents)


class SlotReader:
    """A READY slot, mapped privately and locked (shared flock) so that no trainer writes to it.

    PeerError if the slot is gone, a trainer writes it, or it no longer holds the snapshot in `info`;
    also if its table of contents is damaged or of another version.
    """

    def __init__(self, info: SlotInfo) -> None:
        self.info = info
        try:
            self._fd = os.open(info.path, os.O_RDONLY)
        except FileNotFoundError:
            raise PeerError(f"slot {info.path.name} is gone") from None
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PeerError(f"slot {info.path.name} is being written again") from None
            now = unpack_header(info.path, os.pread(self._fd, HEADER_BYTES, 0))
            if now is None or now != msgspec.structs.replace(
                info, state=next_state(info.state, SlotEvent.READER_OPENS)
            ):
                raise PeerError(f"slot {info.path.name} no longer holds snapshot {info.sequence}")
            # The mapping is private, so our writes do not reach the file.
            self.map = mmap.mmap(self._fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            toc = bytes(self.map[info.toc_offset : info.toc_offset + info.toc_size])
            if xxhash.xxh3_64_intdigest(toc) != info.toc_hash:
                raise PeerError(f"slot {info.path.name}: the table of contents does not match its checksum")
            try:
                self.contents = decode_msgpack(toc, _DECODER)
            except msgspec.DecodeError as error:
                raise PeerError(
                    f"slot {info.path.name}: the table of contents is of another version: {error}"
                ) from error
        except BaseException:
            os.close(self._fd)
            raise

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns bytes of the file.  Call it only before release_lock."""
        return os.pread(self._fd, size, offset)

    def verify_slot(self) -> None:
        """Verifies the checksum of every tensor in the file; PeerError names a damaged one.

        Call it only before release_lock.
        """
        damaged = find_damaged(self._fd, [entry for shard in self.contents.shards for entry in shard])
        if damaged is not None:
            raise PeerError(f"slot {self.info.path.name}: {damaged.key} does not match its checksum")

    def release_lock(self) -> None:
        """Releases the lock; the mapping stays while views of it exist."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # the map holds a copy of the descriptor, which would keep the lock
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.release_lock()
        with contextlib.suppress(BufferError):  # existing views keep the map open until they are gone
            self.map.close()


def remove_slot(path: Path, expected: SlotInfo | None = None) -> bool:
    """Unlinks a slot, for the checkpoint service.

    Returns True if the slot is gone.  Returns False, and leaves the slot, if any process writes or
    reads it, or if its header is no longer `expected` because a new trainer has taken it over.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if expected is not None:
            if unpack_header(path, os.pread(fd, HEADER_BYTES, 0)) != expected:
                return False
            next_state(expected.state, SlotEvent.SERVICE_REMOVES)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


# -- verifying ---------------------------------------------------------------------------------------------------
BUFFER_BYTES = 256 << 10  # fits the cache of one processor, and is large enough for xxhash to release the GIL
ALONE_BYTES_MAX = 32 << 20  # up to this size (some 4 ms), more threads do not pay off
THREADS_MAX = 8  # memory is no faster with more


def find_damaged(fd: int, entries: Sequence[TensorEntry]) -> TensorEntry | None:
    """Finds a tensor that does not match its checksum in the slot open as `fd`; None if all match.

    Usually a trainer has just died and nothing trains, so this uses up to THREADS_MAX processors.
    It leaves one processor free for the start of the next trainer.

    It reads by system calls into a buffer that stays in the cache.  With a mapping, page faults
    would take about 40 % more time (1 GiB on one processor: 170 ms instead of 120).
    """
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)) - 1, len(entries))
    if threads < 2 or sum(entry.size for entry in entries) <= ALONE_BYTES_MAX:
        return _find_damaged(fd, entries)
    largest_first = sorted(entries, key=lambda entry: entry.size, reverse=True)
    shares = [largest_first[number::threads] for number in range(threads)]  # all of about the same size
    with ThreadPoolExecutor(threads, "check") as pool:
        found = pool.map(lambda share: _find_damaged(fd, share), shares)
        return next((entry for entry in found if entry is not None), None)


def _find_damaged(fd: int, entries: Iterable[TensorEntry]) -> TensorEntry | None:
    with memoryview(bytearray(BUFFER_BYTES)) as buffer:
        return next((entry for entry in entries if _hash(fd, entry, buffer) != entry.hash), None)


def _hash(fd: int, entry: TensorEntry, buffer: memoryview) -> int:
    """Hashes the bytes of `entry` in the file.

    If the file is too short, the result does not match.
    """
    hasher, at, end = xxhash.xxh3_64(), entry.offset, entry.offset + entry.size
    while at < end:
        count = os.preadv(fd, [buffer[: min(BUFFER_BYTES, end - at)]], at)
        if not count:
            break
        hasher.update(buffer[:count])
        progress_counter.advance()
        at += count
    return hasher.intdigest()
