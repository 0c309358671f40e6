"""Output of one attempt of a role, with the line above it that says what has ended the attempt before.

Used by role_logs.py.  Reads files only; what a process prints is never waited for.
"""

from __future__ import annotations

import contextlib
from datetime import datetime

from procsv.base.identity import TaskId
from procsv.base.journal.entries import Exited, Spawned
from procsv.base.journal.file import read_journal
from procsv.base.run.logs import LogFollower
from procsv.base.run.run_file import RunFile
from procsv.base.terminal import printable
from procsv.watchdog.core.reporting.wording import sentence

CHUNK_BYTES = 2**16
ROLE_WIDTH = 10


class AttemptLog:
    """Read from its beginning.  `is_marked`: each line begins with the role, and only whole lines are read."""

    def __init__(self, run: RunFile, task: TaskId, number: int, *, is_marked: bool) -> None:
        self.number = number
        self._run, self._role, self._is_marked = run, str(task), is_marked
        self._follower: LogFollower | None = None
        self._rest = b""  # of a line, where lines are marked
        with contextlib.suppress(OSError):  # just removed
            self._follower = LogFollower(run.paths.log(task, number), with_older=True)

    def read(self, is_last: bool) -> bytes:
        """What has been printed since, or the next part of it.  `is_last`: nobody writes to it any more."""
        data = self._read_chunk(is_last)
        if not self._is_marked:
            return data
        lines: list[bytes] = []
        while data and not lines:
            *lines, self._rest = (self._rest + data).split(b"\n")
            data = b"" if lines else self._read_chunk(is_last)
        if not lines and is_last and self._rest:
            lines, self._rest = [self._rest], b""
        mark = f"{self._role:<{ROLE_WIDTH}} │ ".encode()
        return b"".join(mark + line.removesuffix(b"\r").rpartition(b"\r")[2] + b"\n" for line in lines)

    def _read_chunk(self, is_last: bool) -> bytes:
        return b"" if self._follower is None else self._follower.read(CHUNK_BYTES, is_last=is_last)

    def separator(self) -> bytes:
        """The line above it: what has ended the one before, and when this one was started."""
        exits = dict[int, Exited]()
        started_s = None
        for line in read_journal(self._run.paths.journal):
            if line.role == self._role and isinstance(line.entry, Exited):
                exits[line.incarnation] = line.entry
            if (line.role, line.incarnation) == (self._role, self.number) and started_s is None:
                started_s = line.time if isinstance(line.entry, Spawned) else None
        began = datetime.fromtimestamp(started_s).astimezone().strftime(", %m-%d %H:%M:%S") if started_s else ""
        text = f"{self._role} {self.number}{began}"
        if (last := exits.get(self.number - 1)) is not None:
            told = sentence(last.cause, last.evidence, last.step)
            text = f"{self._role} {self.number - 1} {told} ── {text}"
        return f"── {printable(text)} ──\n".encode()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
