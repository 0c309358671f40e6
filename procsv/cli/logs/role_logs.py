"""Logs of a role: the output of one role after another attempt, with what ended each attempt between them.

Used by command.py.  Reads files only; what a process prints is never waited for.
"""

from __future__ import annotations

import contextlib
from datetime import datetime

from procsv.base.identity import TaskId
from procsv.base.run.journal import read_journal
from procsv.base.run.logs import LogFollower, list_numbers, newest_number, older_part
from procsv.base.run.run_file import RunFile
from procsv.base.terminal import printable
from procsv.watchdog.core.wording import sentence

CHUNK_BYTES = 2**16
ROLE_WIDTH = 10


def list_roles(run: RunFile) -> list[str]:
    """The roles of which there is a log."""
    return sorted({path.name.rsplit(".", 2)[0] for path in run.paths.logs.glob("*.*.log")})


class RoleLogs:
    """One role's output.  `is_marked`: each line begins with the role."""

    def __init__(self, run: RunFile, role: str, *, is_marked: bool = False) -> None:
        self.role, self.number = role, 0
        self._run, self._task, self._is_marked = run, TaskId.parse(role), is_marked
        self._follower: LogFollower | None = None
        self._rest = b""  # of a line, where lines are marked

    def numbers(self) -> list[int]:
        return list_numbers(self._run.paths.logs, self.role)

    def newest(self) -> int:
        return newest_number(self._run.paths.logs, self.role)

    def printed_at(self, number: int) -> float:
        """Unix time at which that attempt has printed last."""
        log = self._run.paths.log(self._task, number)
        times = [0.0]
        for part in (log, older_part(log)):
            with contextlib.suppress(OSError):
                times.append(part.stat().st_mtime)
        return max(times)

    def open(self, number: int) -> None:
        """From now on reads that attempt, from its beginning."""
        self.close()
        self.number = number
        with contextlib.suppress(OSError):  # just removed
            self._follower = LogFollower(self._run.paths.log(self._task, number), with_older=True)

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
        mark = f"{self.role:<{ROLE_WIDTH}} │ ".encode()
        return b"".join(mark + line.removesuffix(b"\r").rpartition(b"\r")[2] + b"\n" for line in lines)

    def _read_chunk(self, is_last: bool) -> bytes:
        return self._follower.read(CHUNK_BYTES, is_last=is_last) if self._follower is not None else b""

    def separator(self) -> bytes:
        """The line above an attempt: what has ended the one before, and when this one was started."""
        exits = {}
        started_s = None
        for entry in read_journal(self._run.paths.journal):
            if entry.get("role") == self.role and entry.get("event") == "exited":
                exits[entry.get("incarnation")] = entry
            if (entry.get("role"), entry.get("incarnation")) == (self.role, self.number) and started_s is None:
                started_s = entry["time"] if entry.get("event") == "spawned" else None
        began = datetime.fromtimestamp(started_s).astimezone().strftime(", %m-%d %H:%M:%S") if started_s else ""
        text = f"{self.role} {self.number}{began}"
        if (last := exits.get(self.number - 1)) is not None:
            told = sentence(str(last.get("cause")), str(last.get("evidence")), int(last.get("step", -1)))
            text = f"{self.role} {self.number - 1} {told} ── {text}"
        return f"── {printable(text)} ──\n".encode()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
