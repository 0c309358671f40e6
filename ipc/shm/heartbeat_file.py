"""A process's heartbeat in a mapped file that others read at any time.

Written by trainer and services (one writer a file), read by the watchdog.  Costs no message and no lock, and
stays readable when its writer hangs or is dead.  Lies in the run directory; whoever runs the run removes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

from procsv.ipc.shm.heartbeat import Heartbeat, Phase, Snapshots, Spacing

# magic, guard, phase, step, work, beat_ns, extended_ns, refused, moved; then the fields of Snapshots
_FORMAT = struct.Struct("=8sQQqQqqQQBdQddd")
_MAGIC = b"procsv\x00\x04"
_READ_TRIES_MAX = 100  # the writer holds the guard for about a microsecond


class HeartbeatWriter:
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
        self.snapshots = Snapshots()
        self.refused = 0
        self.moved = 0

    def beat(self, now_s: float) -> None:
        """Writes the fields down.  Killed in between: the guard stays odd and readers keep the last beat."""
        self._guard += 2
        shown = self.snapshots
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
            self.refused,
            self.moved,
            int(shown.spacing),
            shown.interval_s,
            shown.taken,
            shown.stall_s,
            shown.mean_stall_s,
            shown.mean_cost_s,
        )
        struct.pack_into("=Q", self._map, 8, self._guard)

    def close(self) -> None:
        self._map.close()


class HeartbeatReader:
    """The reading end; the file may not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._last: Heartbeat | None = None

    def read(self) -> Heartbeat | None:
        """The last whole beat; None before the first, and if its writer is just in the middle of one: look again."""
        if self._map is None and not self._open():
            return self._last
        assert self._map is not None
        for _ in range(_READ_TRIES_MAX):
            fields = _FORMAT.unpack_from(self._map, 0)
            magic, guard, phase, step, work, beat_ns, extended_ns, refused, moved, spacing, *costs = fields
            (again,) = struct.unpack_from("=Q", self._map, 8)
            # A guard of 0 is no guard: struct clears the place before it writes there.
            if magic == _MAGIC and guard == again != 0 and guard % 2 == 0:
                with contextlib.suppress(
                    ValueError
                ):  # of a later procsv, or damaged: the last one that made sense counts
                    snapshots = Snapshots(Spacing(spacing), *costs)
                    times = beat_ns / 1e9, extended_ns / 1e9
                    self._last = Heartbeat(Phase(phase), step, work, *times, snapshots, refused, moved)
                break
        return self._last

    def _open(self) -> bool:
        """False if the file is not there yet, is not whole, or there is no descriptor left to read it by."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(fd).st_size < mmap.PAGESIZE:
                return False
            self._map = mmap.mmap(fd, mmap.PAGESIZE, access=mmap.ACCESS_READ)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
