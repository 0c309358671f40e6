"""Notes of how the logs grow while their processes run, for whoever wants to read them side by side later.

Used by event_loop.py.  The processes print into their logs themselves, so that nothing of ours can hold them up; what
is noted here is seen from outside, by a stat of each log.  Notes are a convenience: what cannot be written is not said.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.identity import WATCHDOG, TaskId
from procsv.base.run.log_growth import Mark, encode_marks, thin_out
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import open_record, record_mode
from procsv.base.system.atomic_file import replace_file

LOOK_S = 0.45  # between two looks: at each tick of the event loop, and not at the turns in between
LOGS_MAX = 16  # at one look: of more, on a network filesystem perhaps, each look takes some in turn
BYTES_MAX = 4 * 2**20
THIN_OUT_S = 60.0  # between two tries to make the file smaller, which may take a tenth of a second
STDOUT = Path("/proc/self/fd/1")


class _Log(msgspec.Struct):
    path: Path
    noted: tuple[int, int] | None = None  # inode and size


class LogGrowth:
    """The logs of the processes that run, and what was noted of each last."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        self._paths, self._clock = paths, clock
        self._logs: dict[TaskId, _Log] = {}  # in the order of their starts
        self._look_s = self._thin_out_s = 0.0
        self._looks = 0
        self._is_ours = True
        with contextlib.suppress(OSError):  # not a file: a terminal, a pipe
            if (own := STDOUT.readlink()).parent == paths.logs:
                self._logs[WATCHDOG] = _Log(own)  # the run is detached

    def note_start(self, task: TaskId, incarnation: int) -> None:
        if task in self._logs:  # of a standby that has become the trainer itself, nobody says that it has ended
            self._note()
            del self._logs[task]
        self._logs[task] = _Log(self._paths.log(task, incarnation))

    def note_end(self, task: TaskId, incarnation: int) -> None:
        """Notes all: what the others print from now on came after its last words."""
        self._note()
        if task in self._logs and self._logs[task].path == self._paths.log(task, incarnation):
            del self._logs[task]

    def note_growth(self) -> None:
        """Called at every turn of the event loop; looks when it is time to."""
        if (now_s := self._clock.monotonic()) >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._looks += 1
            logs, shares = list(self._logs.values()), -(-len(self._logs) // LOGS_MAX) or 1
            self._note(logs[self._looks % shares :: shares])

    def stop_writing(self) -> None:
        """The directory is another run's."""
        self._is_ours = False

    def close(self) -> None:
        self._note()

    def _note(self, logs: Iterable[_Log] | None = None) -> None:
        """Looks at those; None: at all."""
        seen = [(log, _look_at(log.path)) for log in (self._logs.values() if logs is None else logs)]
        grown = [(log, now) for log, now in seen if now is not None and now != log.noted]
        if not grown or not self._is_ours:
            return
        time_s = round(self._clock.wall(), 6)
        data = encode_marks([Mark(time_s, log.path.name, file, size) for log, (file, size) in grown])
        with contextlib.suppress(OSError):  # a full disk, or a directory that is gone: the next look notes it
            if self._has_room():
                _append(self._paths.log_growth, data)
                for log, now in grown:
                    log.noted = now

    def _has_room(self) -> bool:
        """Whether the file is small enough, or was made so."""
        path, now_s = self._paths.log_growth, self._clock.monotonic()
        if not path.exists() or path.stat().st_size < BYTES_MAX:
            return True
        if now_s < self._thin_out_s:
            return False
        self._thin_out_s = now_s + THIN_OUT_S
        thinned = thin_out(path.read_bytes(), {log.name for log in path.parent.iterdir()})
        # Killed in here: the whole file stays, with perhaps a dot-file beside it that the next call replaces.
        replace_file(path, thinned, durable=False, mode=record_mode(path.parent))
        return True


def _look_at(log: Path) -> tuple[int, int] | None:
    """Inode and size; None if there is nothing to be noted."""
    try:
        info = log.stat()
    except OSError:
        return None  # not made yet, just being rotated, or removed
    return info.st_ino, info.st_size


def _append(path: Path, data: bytes) -> None:
    """Opened anew for each time: whoever removes the file, or its directory, need not tell us."""
    fd = open_record(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data  # a line that a kill or a full disk has cut short ends here
        # Killed in here: at most the last line is torn, and is passed over.
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")
    finally:
        os.close(fd)
