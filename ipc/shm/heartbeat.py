"""A process's heartbeat: its phase, step and progress in a mapped file that others read at any time.

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

# magic, guard, phase, step, work, beat_ns, extended_ns, refused, moved; then the fields of Snapshots
_FORMAT = struct.Struct("=8sQQqQqqQQBdQddd")
_MAGIC = b"procsv\x00\x04"
LOOP_AT_DISK = 2**64 - 1  # as `moved`: the loop itself is in the hands of a disk, and comes round when that lets it
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


class Spacing(IntEnum):
    """What decides how far apart a trainer's snapshots are."""

    NONE = 0  # there are none: no Saver, or its checkpoints are switched off
    OFF = 1  # none by time
    TOLD = 2  # a fixed interval
    AUTO_LEAST = 3  # auto: they cost so little that the least interval will do
    AUTO_COST = 4  # auto: as far apart as their cost demands
    AUTO_MOST = 5  # auto: the longest there is, whatever they cost
    CHECKPOINTS = 6  # one for each checkpoint


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How a trainer spaces its snapshots, and what they cost the training thread (stall) and all in all."""

    spacing: Spacing = Spacing.NONE
    interval_s: float = 0.0  # 0.0: none by time
    taken: int = 0
    stall_s: float = 0.0  # of the last one
    mean_stall_s: float = 0.0  # weighted towards the newest, like the next
    mean_cost_s: float = 0.0

    @property
    def share(self) -> float:
        """Of the training time, what snapshots cost at this interval."""
        return self.mean_cost_s / self.interval_s if self.interval_s else 0.0

    @property
    def why(self) -> str:
        """The choice, for people."""
        cost = f"one costs {self.mean_cost_s * 1e3:.1f} ms, {self.share:.2%} of the time"
        return {
            Spacing.NONE: "there are no snapshots",
            Spacing.OFF: "switched off",
            Spacing.TOLD: f"as told; {cost}",
            Spacing.AUTO_LEAST: f"auto: never closer; {cost}",
            Spacing.AUTO_COST: f"auto: so that they cost at most 1 %; {cost}",
            Spacing.AUTO_MOST: f"auto: never farther apart; {cost}",
            Spacing.CHECKPOINTS: f"one for each checkpoint; {cost}",
        }[self.spacing]

    def as_status(self) -> dict[str, str | int | float]:
        """What `procsv status --json` shows; seconds, and milliseconds where the name says so."""
        return {
            "spacing": self.spacing.name.lower().partition("_")[0],
            "interval": round(self.interval_s, 3),
            "why": self.why,
            "taken": self.taken,
            "stall_ms": round(self.stall_s * 1e3, 3),
            "mean_stall_ms": round(self.mean_stall_s * 1e3, 3),
            "mean_cost_ms": round(self.mean_cost_s * 1e3, 3),
            "share": round(self.share, 6),
        }


@dataclass(frozen=True, slots=True)
class Heartbeat:
    phase: Phase
    step: int  # global step as last read; -1 before the first reading
    work: int  # what it has got done: runs of the session, durable checkpoints, records written
    beat_s: float  # monotonic time of the last writing
    extended_s: float  # monotonic deadline that procsv.extend() has pushed out; 0.0 if none
    snapshots: Snapshots = Snapshots()  # of a trainer
    refused: int = 0  # messages that were not fit to be heard (a service's; it has a socket of its own)
    moved: int = 0  # how far the jobs that a service has have come; 0: it has none, or none that could say


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
