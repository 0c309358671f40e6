"""Reads what lies in a slot against the checksums that were taken when it was filled.

Called by SlotReader.verify, mostly just after a trainer's death: nothing trains then, so it takes all processors but one,
which is for the next trainer's start.  Never changes anything.  Read by system calls into a buffer that stays in the
cache, not through a mapping: the page faults of that would cost as much as the hashing (1 GiB on one processor: 120 ms
instead of 170).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from procsv.base.system import progress_counter
from procsv.ipc.shm.slot_index import TensorEntry

BUFFER_BYTES = 256 << 10  # fits the cache of one processor; long enough that xxhash lets go of the interpreter
ALONE_BYTES_MAX = 32 << 20  # up to here (some 4 ms) threads do not pay
THREADS_MAX = 8  # memory is no faster for more


def find_damaged(fd: int, entries: Sequence[TensorEntry]) -> TensorEntry | None:
    """A tensor of the slot that is open as `fd` which does not match its checksum; None if all of them do."""
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)) - 1, len(entries))
    if threads < 2 or sum(entry.size for entry in entries) <= ALONE_BYTES_MAX:
        return _find_damaged(fd, entries)
    largest_first = sorted(entries, key=lambda entry: entry.size, reverse=True)
    shares = [largest_first[number::threads] for number in range(threads)]  # of about the same size each
    with ThreadPoolExecutor(threads, "check") as pool:
        found = pool.map(lambda share: _find_damaged(fd, share), shares)
        return next((entry for entry in found if entry is not None), None)


def _find_damaged(fd: int, entries: Iterable[TensorEntry]) -> TensorEntry | None:
    with memoryview(bytearray(BUFFER_BYTES)) as buffer:
        return next((entry for entry in entries if _hash(fd, entry, buffer) != entry.hash), None)


def _hash(fd: int, entry: TensorEntry, buffer: memoryview) -> int:
    """Of as much of `entry` as the file has: what it lacks does not match either."""
    hasher, at, end = xxhash.xxh3_64(), entry.offset, entry.offset + entry.size
    while at < end:
        count = os.preadv(fd, [buffer[: min(BUFFER_BYTES, end - at)]], at)
        if not count:
            break
        hasher.update(buffer[:count])
        progress_counter.advance()
        at += count
    return hasher.intdigest()
