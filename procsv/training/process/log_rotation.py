"""Rotate the trainer's own log at a size limit, and replace it if the program deletes it.

A log beyond the limit becomes `NAME.log.1`, replacing the previous one.  Standard output and error
continue in a new `NAME.log`, also for native libraries.  The program may delete the log together
with its logdir.  The thread that talks to the run calls this.  A process that the program has
started keeps writing to its original file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from procsv.base.run.logs import older_part
from procsv.base.run.records import make_record_dir, open_record
from procsv.base.system import stale

CHECK_S = 5.0
OUTPUTS = (1, 2)


class LogRotation:
    """Rotates this process's own log."""

    def __init__(self, log: Path, bytes_max: int) -> None:
        """`bytes_max` 0 means no limit."""
        self._log, self._bytes_max = log, bytes_max
        self._check_s = 0.0

    def rotate_if_due(self, now_s: float) -> None:
        """Checks, when due, whether the log is too large or gone.

        A failure, for example on a full disk, is retried at the next check.
        """
        if now_s < self._check_s:
            return
        self._check_s = now_s + CHECK_S
        for fd in OUTPUTS:
            stale.reopen(fd)  # for native libraries, which do not print through Python
        with contextlib.suppress(OSError):  # training is worth more than the log
            if self._log.exists():
                self._rotate_if_large()
            elif self._log.parents[1].is_dir():  # <logdir>/procsv, which this process must not create
                make_record_dir(self._log.parent)
                self._go_on_in_new(_all_open_on_deleted(self._log))

    def _rotate_if_large(self) -> None:
        there = self._log.stat()
        ours = [fd for fd in OUTPUTS if _is_open_on(fd, there)]  # otherwise the program has redirected or closed it
        if not self._bytes_max or there.st_size <= self._bytes_max or not ours:
            return
        older = older_part(self._log)
        self._log.replace(older)
        # After a kill here the log has only its older name, and readers find no log.
        try:
            self._go_on_in_new(ours)
        except OSError:
            older.replace(self._log)
            raise

    def _go_on_in_new(self, ours: list[int]) -> None:
        if not ours:
            return
        new = open_record(self._log, os.O_WRONLY | os.O_APPEND)
        for fd in ours:
            os.dup2(new, fd)
        os.close(new)


def _all_open_on_deleted(log: Path) -> list[int]:
    """Our outputs that go to a deleted file at `log`."""
    gone = f"{log} (deleted)"
    links = {fd: Path(f"/proc/self/fd/{fd}") for fd in OUTPUTS}
    return [fd for fd, link in links.items() if link.is_symlink() and str(link.readlink()) == gone]


def _is_open_on(fd: int, there: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), there)
    except OSError:
        return False
