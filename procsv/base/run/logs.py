"""Logs of a run's processes: following one through its rotation, and reading its end.

Rotation: the writer renames `NAME.log` to `NAME.log.1`, replacing an older file of that name, and starts a new `NAME.log`
(training/process/log_rotation.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from procsv.base.system import stale
from procsv.base.system.data_file import open_data, open_stream
from procsv.base.terminal import is_startup_noise

# Of an attempt, in the name of a file.  Nothing is started ten million times: a larger number is not ours, and would be the next one's.
NUMBER = r"(\d{1,7})"
TAIL_BYTES_MAX = 2**18  # read for the last lines
LOGS_KEPT_MAX = 20  # of one name; the oldest go first
LOG_BYTES_MAX = 2**30  # of one name, the newest not counted
LINGER_S = 1.0  # at the end of an old part: its writer may still write to it for a moment


def older_part(log: Path) -> Path:
    """The part of `log` before its last rotation."""
    return log.with_name(f"{log.name}.1")


def rotate_if_large(path: Path, bytes_max: int) -> None:
    """Makes a file that is larger the older part of itself, in the place of the one before.  Who has it open goes on writing to it."""
    with contextlib.suppress(OSError):  # it is not there yet, or the disk is not: tried again at the next call
        if path.stat().st_size > bytes_max:
            path.replace(older_part(path))


def list_numbers(logs: Path, name: str) -> list[int]:
    """The numbers of the logs NAME.<number>.log in a directory, in order."""
    pattern = re.compile(rf"{re.escape(name)}\.{NUMBER}\.log(?:\.1)?")
    return sorted({int(match[1]) for path in logs.glob("*.log*") if (match := pattern.fullmatch(path.name))})


def newest_number(logs: Path, name: str) -> int:
    """The highest of these numbers; 0 if there is none."""
    return max(list_numbers(logs, name), default=0)


class LogFollower:
    """Reads a log to its end, and then what is appended."""

    def __init__(self, log: Path, *, with_older: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """OSError if there is no such log.  `with_older`: first the part before the last rotation."""
        self._log, self._monotonic = log, monotonic
        self._fds: list[int] = []  # of its parts, in their order
        self._leave_s: float | None = None  # when to leave the part that is being read; None: it has not been rotated
        for part in (log, older_part(log)) if with_older else (log,):
            try:
                fd = open_data(part)
            except FileNotFoundError:
                continue  # never rotated, or just being rotated
            if self._fds and os.path.sameopenfile(fd, self._fds[0]):
                os.close(fd)  # rotated between the two calls: it is the one that is open already
            else:
                self._fds.insert(0, fd)
        if not self._fds:
            raise FileNotFoundError(f"{log} is not there")

    def read_log(self, size: int, *, is_last: bool = False) -> bytes:
        """Up to `size` bytes; none if there are no more just now.  `is_last`: nobody writes to it any more."""
        while True:
            data = self._read_on(size)
            if data:
                return data
            if len(self._fds) > 1:
                stale.close(self._fds.pop(0))
            elif not self._go_on(is_last):
                return b""

    def _read_on(self, size: int) -> bytes:
        """From where the last read has ended, also where the log has to be opened anew for that."""
        try:
            return os.read(self._fds[0], size)
        except OSError as error:
            if not stale.is_stale(error):
                raise
        part = older_part(self._log) if len(self._fds) > 1 else self._log
        new, at = open_data(part), os.lseek(self._fds[0], 0, os.SEEK_CUR)
        stale.close(self._fds[0])
        self._fds[0] = new
        os.lseek(new, min(at, os.fstat(new).st_size), os.SEEK_SET)
        return os.read(new, size)

    def _go_on(self, is_last: bool) -> bool:
        """At the end of the file: whether there is another one now."""
        if not self._is_rotated():
            return False
        now_s = self._monotonic()
        if self._leave_s is None:
            self._leave_s = now_s + LINGER_S
        if now_s < self._leave_s and not is_last:
            return False
        with contextlib.suppress(OSError):
            self._fds.append(open_data(self._log))
            stale.close(self._fds.pop(0))
            self._leave_s = None
            return True
        return False

    def _is_rotated(self) -> bool:
        try:
            return not os.path.samestat(self._log.stat(), os.fstat(self._fds[0]))
        except OSError:
            return False  # just being done, or removed

    def close(self) -> None:
        while self._fds:
            stale.close(self._fds.pop())


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines that say something; a progress line that rewrites itself counts as its last state.

    What TensorFlow says at every start is left out.
    """
    data = read_end(log, TAIL_BYTES_MAX)
    if len(data) < TAIL_BYTES_MAX:  # just rotated, perhaps
        data = read_end(older_part(log), TAIL_BYTES_MAX - len(data)) + data
    text = b"\n".join(line for line in data.split(b"\n") if not is_startup_noise(line)).decode(errors="replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return list(deque((line for line in lines if line.strip()), maxlen=count))


def read_end(log: Path, bytes_max: int) -> bytes:
    """The last bytes of a log; none if it cannot be read."""
    try:
        with open_stream(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
            return file.read()
    except OSError:
        return b""


def prune_logs(new: Path) -> None:
    """Keeps the newest logs of the task that `new` is of, so that a run of weeks does not fill the disk."""
    with contextlib.suppress(OSError):
        old = [path for path in new.parent.glob(f"{new.name.rsplit('.', 2)[0]}.*.log") if path != new]
        old.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for number, path in enumerate(old, start=2):  # the new one is the first
            parts = [part for part in (path, older_part(path)) if part.exists()]
            total += sum(part.stat().st_size for part in parts)
            if number > LOGS_KEPT_MAX or total > LOG_BYTES_MAX:
                for part in parts:
                    part.unlink(missing_ok=True)
