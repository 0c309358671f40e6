"""A process's pulse: its phase, step and progress in a mapped file that others read at any time.

Written by trainer and services (one writer a file), read by the watchdog.  Costs no message and no lock, and
stays readable when its writer hangs or is dead.  Lies in the run directory; whoever runs the run removes it.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_FORMAT = struct.Struct("=8sQQqQqq")  # magic, guard, phase, step, work, beat_ns, extended_ns
_MAGIC = b"procsv\x00\x01"
_READ_TRIES_MAX = 100  # the writer holds the guard for about a microsecond


class Phase(IntEnum):
    """What a process is doing; each phase has its own deadline."""

    IMPORT = 0
    CONNECT = 1
    RESTORE = 2
    COMPILE = 3  # from the restored session to the end of the first step
    STEP = 4
    SAVE = 5
    STOP = 6
    IDLE = 7


@dataclass(frozen=True, slots=True)
class Beat:
    phase: Phase
    step: int  # global step as last read; -1 before the first reading
    work: int  # what it has got done: runs of the session, durable checkpoints, records written
    beat_s: float  # monotonic time of the last writing
    extended_s: float  # monotonic deadline that procsv.extend() has pushed out; 0.0 if none


class PulseWriter:
    """The writing end.  One process writes; any of its threads, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self._guard = 0
        self.phase = Phase.IMPORT
        self.step = -1
        self.work = 0
        self.extended_s = 0.0

    def beat(self, now_s: float) -> None:
        """Writes the fields down.  Killed in between: the guard stays odd and readers keep the last beat."""
        self._guard += 2
        struct.pack_into("=Q", self._map, 8, self._guard - 1)
        _FORMAT.pack_into(
            self._map,
            0,
            _MAGIC,
            self._guard - 1,
            int(self.phase),
            self.step,
            self.work,
            int(now_s * 1e9),
            int(self.extended_s * 1e9),
        )
        struct.pack_into("=Q", self._map, 8, self._guard)

    def close(self) -> None:
        self._map.close()


class PulseReader:
    """The reading end; the file may not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._last: Beat | None = None

    def read(self) -> Beat | None:
        """The last whole beat; None before the first, and if its writer is just in the middle of one: look again."""
        if self._map is None:
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                if os.fstat(fd).st_size < mmap.PAGESIZE:
                    return None
                self._map = mmap.mmap(fd, mmap.PAGESIZE, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        for _ in range(_READ_TRIES_MAX):
            magic, guard, phase, step, work, beat_ns, extended_ns = _FORMAT.unpack_from(self._map, 0)
            (again,) = struct.unpack_from("=Q", self._map, 8)
            # A guard of 0 is no guard: struct clears the place before it writes there.
            if magic == _MAGIC and guard == again != 0 and guard % 2 == 0:
                self._last = Beat(Phase(phase), step, work, beat_ns / 1e9, extended_ns / 1e9)
                break
        return self._last

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
