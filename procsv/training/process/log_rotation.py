"""What the program prints is kept within a limit, however long it runs.

When its log has grown beyond, it becomes `NAME.log.1`, in the place of the one before, and standard output and error go on in a
new `NAME.log`: whatever writes to them, native libraries, too.  Looked at by the thread that talks to the run.  A process
that the program has started meanwhile writes on to the file that it was given.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from procsv.base.run.log_follower import older_part

LOOK_S = 5.0
OUTPUTS = (1, 2)


class LogLimit:
    """Of this process's own log."""

    def __init__(self, log: Path, bytes_max: int) -> None:
        """`bytes_max` 0: it may grow."""
        self._log, self._bytes_max = log, bytes_max
        self._look_s = 0.0

    def tick(self, now_s: float) -> None:
        """Now and then.  What cannot be done now, on a disk that is full or gone say, is tried the next time."""
        if not self._bytes_max or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        with contextlib.suppress(OSError):  # the log is not worth the training
            self._look()

    def _look(self) -> None:
        there = self._log.stat()
        ours = [fd for fd in OUTPUTS if _is_open_on(fd, there)]  # else the program has redirected or closed it
        if there.st_size <= self._bytes_max or not ours:
            return
        older = older_part(self._log)
        self._log.replace(older)
        # killed here: the log is what is called older, and whoever looks for the log finds none
        try:
            new = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            older.replace(self._log)
            raise
        for fd in ours:
            os.dup2(new, fd)
        os.close(new)


def _is_open_on(fd: int, there: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), there)
    except OSError:
        return False
