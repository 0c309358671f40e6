"""Keep a process's heartbeat in a mapped file that other processes can read at any time.

Each trainer and each service writes one file.  The watchdog reads it, and so does `procsv status`.
Reading needs no message and no lock, and works even if the writer hangs or is dead.  The files are
in the run directory; the watchdog removes them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from procsv.base.identity import TaskId
from procsv.base.outcome import NO_STEP, FitPlace, Loss
from procsv.base.run.paths import RunPaths
from procsv.ipc.shm.heartbeat import NOT_RETURNED, Heartbeat, Phase, Snapshots, Spacing

# magic, guard, phase, step, work, beat_ns, extended_ns, refused, moved, in_step, returned, handles; then FitPlace,
# Snapshots, the step and value of a loss, and the package being imported
_FORMAT = struct.Struct("=8sQQqQqqQQ?hQQQQQQBdQddddqd24s")
_MAGIC = b"procsv\x00\x08"
_NAME_BYTES = 24
_NO_FIT = FitPlace(number=0, epoch=0, epochs=0, batch=0, batches=0)
_NO_LOSS = Loss("", NO_STEP, 0.0)
_LOSS_NAME = "loss"  # Keras' name for it
_READ_TRIES_MAX = 100  # a write takes about a microsecond


class HeartbeatWriter:
    """The writing end.  Any thread of its process may write, but only one at a time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if there is no room for the file."""
        self.path = path
        self._map, self._identity = _map_file(path)
        self._guard = 0
        self.phase = Phase.IMPORT
        self.step = -1
        self.work = 0
        self.extended_s = 0.0
        self.snapshots = Snapshots()
        self.refused = 0
        self.moved = 0
        self.in_step = True
        self.returned = NOT_RETURNED
        self.fit: FitPlace | None = None
        self.handles = 0
        self.loss: Loss | None = None
        self.importing = ""

    def beat(self, now_s: float) -> None:
        """Writes the fields to the file.

        The file has a counter, the guard, which is odd during a write.  If the writer is killed
        then, the guard stays odd, and readers keep the previous beat.
        """
        self._guard += 2
        shown, fit, loss = self.snapshots, self.fit or _NO_FIT, self.loss or _NO_LOSS
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
            self.in_step,
            self.returned,
            self.handles,
            fit.number,
            fit.epoch,
            fit.epochs,
            fit.batch,
            fit.batches,
            int(shown.spacing),
            shown.interval_s,
            shown.taken,
            shown.stall_s,
            shown.mean_stall_s,
            shown.mean_cost_s,
            shown.apart_s,
            loss.step,
            loss.value,
            self.importing.encode(errors="replace")[:_NAME_BYTES],
        )
        struct.pack_into("=Q", self._map, 8, self._guard)

    def renew_file(self) -> None:
        """Continues in a new file if somebody has removed ours.

        If no new file can be created, raises OSError and keeps the old one.
        """
        with contextlib.suppress(FileNotFoundError):
            if _file_identity(self.path.stat()) == self._identity:
                return
        before = self._map
        self._map, self._identity = _map_file(self.path)
        self._map[:] = before[:]
        before.close()

    def close(self) -> None:
        self._map.close()


def allocate_heartbeat(path: Path) -> int:
    """Opens or creates the file and returns its descriptor.

    Allocates the memory, so that a writer gets no SIGBUS.  OSError if there is no room.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, mmap.PAGESIZE)
    except OSError as error:
        os.close(fd)
        error.filename = str(path)
        raise
    return fd


def _map_file(path: Path) -> tuple[mmap.mmap, tuple[int, int]]:
    fd = allocate_heartbeat(path)
    try:
        return mmap.mmap(fd, mmap.PAGESIZE), _file_identity(os.fstat(fd))
    finally:
        os.close(fd)


def _file_identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _heartbeat_of(values: Sequence[Any]) -> Heartbeat:
    """Returns the heartbeat in `values`, the fields after magic and guard.

    ValueError if the values make no sense.
    """
    phase, step, work, beat_ns, extended_ns, refused, moved, in_step, returned, handles = values[:10]
    number, epoch, epochs, batch, batches = values[10:15]
    spacing, interval_s, taken, stall_s, mean_stall_s, mean_cost_s, apart_s = values[15:22]
    loss_step, loss, importing = values[22:]
    fit = FitPlace(number=number, epoch=epoch, epochs=epochs, batch=batch, batches=batches)
    snapshots = Snapshots(
        spacing=Spacing(spacing),
        interval_s=interval_s,
        taken=taken,
        stall_s=stall_s,
        mean_stall_s=mean_stall_s,
        mean_cost_s=mean_cost_s,
        apart_s=apart_s,
    )
    return Heartbeat(
        phase=Phase(phase),
        step=step,
        work=work,
        beat_s=beat_ns / 1e9,
        extended_s=extended_ns / 1e9,
        snapshots=snapshots,
        refused=refused,
        moved=moved,
        fit=fit if number else None,
        in_step=in_step,
        returned=returned,
        handles=handles,
        loss=Loss(_LOSS_NAME, loss_step, loss) if loss_step >= 0 else None,
        importing=importing.rstrip(b"\0").decode(errors="replace"),
    )


class HeartbeatReader:
    """The reading end.  The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._identity: tuple[int, int] | None = None
        self._last: Heartbeat | None = None

    def read_heartbeat(self) -> Heartbeat | None:
        """Returns the newest whole beat that could be read; None if there was none yet.

        If the writer was killed during a write, this is the last beat that this reader has read.
        """
        self._open_file()
        for _ in range(_READ_TRIES_MAX):
            data = self._read_bytes()
            if len(data) < _FORMAT.size:
                break
            fields = _FORMAT.unpack(data)
            magic, guard, *values = fields
            (again,) = struct.unpack_from("=Q", self._read_bytes(), 8)
            # A guard of 0 does not count, because struct clears the bytes before it writes them.
            if magic == _MAGIC and guard == again != 0 and guard % 2 == 0:
                with contextlib.suppress(ValueError):  # from a later procsv, or damaged; keep the last valid one
                    self._last = _heartbeat_of(values)
                break
        return self._last

    def _read_bytes(self) -> bytes:
        """Reads by a system call, because a mapping of a truncated file would end us by SIGBUS."""
        try:
            return os.pread(self._fd, _FORMAT.size, 0) if self._fd >= 0 else b""
        except OSError:
            return b""

    def _open_file(self) -> None:
        """Opens the file at the path.

        Does nothing if that file is already open or still too small, or if it cannot be opened.
        """
        try:
            info = self.path.stat()
            if _file_identity(info) == self._identity or info.st_size < mmap.PAGESIZE:
                return
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # the writer may still have the old file open, and will recreate it
        self.close()
        self._fd, self._identity = fd, _file_identity(os.fstat(fd))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._identity = -1, None


class RunHeartbeats:
    """The heartbeats of a run's processes, by task."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._readers: dict[TaskId, HeartbeatReader] = {}

    def follow_heartbeat(self, task: TaskId, incarnation: int) -> None:
        """Follows the heartbeat of this attempt of `task` from now on.

        Removes a file of the same name from an earlier launch, and allocates a new one.  So if
        there is no room, OSError is raised here, before the process starts that writes the
        heartbeat.
        """
        path = self._paths.heartbeat(task, incarnation)
        path.unlink(missing_ok=True)
        os.close(allocate_heartbeat(path))
        self._readers[task] = HeartbeatReader(path)

    def read_heartbeats(self) -> dict[TaskId, Heartbeat]:
        return {task: beat for task, reader in self._readers.items() if (beat := reader.read_heartbeat()) is not None}

    def drop_heartbeat(self, task: TaskId) -> Heartbeat | None:
        """Returns the last heartbeat of a dead process, and removes its file."""
        reader = self._readers.pop(task, None)
        if reader is None:
            return None
        beat = reader.read_heartbeat()
        reader.close()
        reader.path.unlink(missing_ok=True)
        return beat

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
