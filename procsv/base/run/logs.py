"""Follow the logs of a run's processes through rotation, and read their ends.

To rotate a log, its writer renames `NAME.log` to `NAME.log.1`, replacing an older file of that
name, and starts a new `NAME.log` (training/process/log_rotation.py).
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

# The number of an attempt in a file name.  Nothing is started ten million times, so a file with a larger number is not
# ours.  It must not match, or the next attempt would continue from that number.
NUMBER = r"(\d{1,7})"
TAIL_BYTES_MAX = 2**18  # how much is read for the last lines
LOGS_KEPT_MAX = 20  # per task; the oldest are removed first
LOG_BYTES_MAX = 2**30  # per task, without its newest log
LINGER_S = 1.0  # wait at the end of an old part, because its writer may still write to it for a moment


def older_part(log: Path) -> Path:
    """Returns the path of the part of `log` before its last rotation."""
    return log.with_name(f"{log.name}.1")


def rotate_if_large(path: Path, bytes_max: int) -> None:
    """Renames a file larger than `bytes_max` to `older_part`, replacing the previous one.

    A process that has the file open keeps writing to it.
    """
    with contextlib.suppress(OSError):  # the file or the disk is missing; the next call tries again
        if path.stat().st_size > bytes_max:
            path.replace(older_part(path))


def list_numbers(logs: Path, name: str) -> list[int]:
    """Returns the numbers of the logs NAME.<number>.log in a directory, in order."""
    pattern = re.compile(rf"{re.escape(name)}\.{NUMBER}\.log(?:\.1)?")
    return sorted({int(match[1]) for path in logs.glob("*.log*") if (match := pattern.fullmatch(path.name))})


def newest_number(logs: Path, name: str) -> int:
    """Returns the highest number of a log NAME.<number>.log in a directory; 0 if there is none."""
    return max(list_numbers(logs, name), default=0)


class LogFollower:
    """Reads a log to its end, and then everything that is appended."""

    def __init__(self, log: Path, *, with_older: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`with_older`: read the part before the last rotation first.

        OSError if there is no such log.
        """
        self._log, self._monotonic = log, monotonic
        self._fds: list[int] = []  # of its parts, in order
        self._leave_s: float | None = None  # when to leave the current part; None if it was not rotated
        for part in (log, older_part(log)) if with_older else (log,):
            try:
                fd = open_data(part)
            except FileNotFoundError:
                continue  # it was never rotated, or is just being rotated
            if self._fds and os.path.sameopenfile(fd, self._fds[0]):
                os.close(fd)  # it was rotated between the two calls, and is already open
            else:
                self._fds.insert(0, fd)
        if not self._fds:
            raise FileNotFoundError(f"{log} is not there")

    def read_log(self, size: int, *, is_last: bool = False) -> bytes:
        """Returns up to `size` bytes; no bytes if there are no more yet.

        `is_last`: nobody writes to the log any more.
        """
        while True:
            data = self._read_on(size)
            if data:
                return data
            if len(self._fds) > 1:
                stale.close(self._fds.pop(0))
            elif not self._go_on(is_last):
                return b""

    def _read_on(self, size: int) -> bytes:
        """Continues where the last read ended, and reopens the log if its handle is stale."""
        try:
            data, fd = os.read(self._fds[0], size), self._fds[0]
            if data or os.lseek(fd, 0, os.SEEK_CUR) <= os.fstat(fd).st_size:
                return data
            os.lseek(fd, 0, os.SEEK_SET)  # somebody has emptied the file
            return os.read(fd, size)
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
        """Goes on to the next part at the end of the current one.

        Returns False if there is none yet.
        """
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
            return False  # it is just being rotated, or was removed

    def close(self) -> None:
        while self._fds:
            stale.close(self._fds.pop())


def last_lines(log: Path, count: int) -> list[str]:
    """Returns the last non-empty lines, without TensorFlow's start-up noise.

    A progress bar, which overwrites its own line, is returned in its last state.
    """
    data = read_end(log, TAIL_BYTES_MAX)
    if len(data) < TAIL_BYTES_MAX:  # perhaps it was just rotated
        data = read_end(older_part(log), TAIL_BYTES_MAX - len(data)) + data
    text = b"\n".join(line for line in data.split(b"\n") if not is_startup_noise(line)).decode(errors="replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return list(deque((line for line in lines if line.strip()), maxlen=count))


def read_end(log: Path, bytes_max: int) -> bytes:
    """Returns the last bytes of a log; none if it cannot be read."""
    try:
        with open_stream(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
            return file.read()
    except OSError:
        return b""


def prune_logs(new: Path) -> None:
    """Keeps only the newest logs of the task of `new`.

    So a run of weeks does not fill the disk.
    """
    with contextlib.suppress(OSError):
        old = [path for path in new.parent.glob(f"{new.name.rsplit('.', 2)[0]}.*.log") if path != new]
        old.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for number, path in enumerate(old, start=2):  # the new log is the first
            parts = [part for part in (path, older_part(path)) if part.exists()]
            total += sum(part.stat().st_size for part in parts)
            if number > LOGS_KEPT_MAX or total > LOG_BYTES_MAX:
                for part in parts:
                    part.unlink(missing_ok=True)
