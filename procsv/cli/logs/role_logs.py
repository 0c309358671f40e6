"""Logs of a role: which attempts there are, and those of them that are being read.

Used by command.py.  Reads files only.
"""

from __future__ import annotations

import contextlib
import os

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.run.journal import read_journal
from procsv.base.run.logs import list_numbers, newest_number, older_part
from procsv.base.run.run_file import RunFile
from procsv.cli.logs.attempt_log import AttemptLog
from procsv.cli.logs.print_order import Part, Printed


def list_roles(run: RunFile) -> list[str]:
    """The roles of which there is a log."""
    return sorted({path.name.rsplit(".", 2)[0] for path in run.paths.logs.glob("*.*.log")})


def list_roles_on(run: RunFile, host: str) -> list[str]:
    """Those of the tasks that this machine has, in the newest launch; UserError if it has none."""
    started = [entry for entry in read_journal(run.paths.journal) if entry["event"] == "run_started"]
    hosts = started[-1].get("hosts", {}) if started else {}
    found = [role for role in list_roles(run) if hosts.get(role.removeprefix("standby-")) == host]
    if not found:
        there = f"its machines are {', '.join(sorted(set(hosts.values())))}" if hosts else "it is on one machine"
        raise UserError(f"no task of this run is on {host!r}: {there}")
    return found


class RoleLogs:
    """One role's output.  `is_marked`: each line begins with the role."""

    def __init__(self, run: RunFile, role: str, *, is_marked: bool = False) -> None:
        self.role = role
        self._run, self._task, self._is_marked = run, TaskId.parse(role), is_marked
        self._open: dict[int, AttemptLog] = {}

    def numbers(self) -> list[int]:
        return list_numbers(self._run.paths.logs, self.role)

    def newest(self) -> int:
        return newest_number(self._run.paths.logs, self.role)

    def printed_at(self, number: int) -> float:
        """Unix time at which that attempt has printed last."""
        return max((part.st_mtime for part in self._parts(number)), default=0.0)

    def describe(self, number: int) -> Printed:
        parts = tuple(Part(part.st_ino, part.st_size) for part in self._parts(number))
        return Printed(self._run.paths.log(self._task, number).name, number, self.printed_at(number), parts)

    def _parts(self, number: int) -> list[os.stat_result]:
        """The files of that attempt, the oldest first."""
        log, parts = self._run.paths.log(self._task, number), list[os.stat_result]()
        for path in (log, older_part(log)):
            with contextlib.suppress(OSError):
                part = path.stat()
                if not any(os.path.samestat(part, other) for other in parts):  # rotated just now
                    parts.insert(0, part)
        return parts

    @property
    def latest(self) -> AttemptLog | None:
        """The newest attempt that is being read."""
        return self._open[max(self._open)] if self._open else None

    def open(self, number: int) -> AttemptLog:
        """That attempt, which is read on if it is being read."""
        if number not in self._open:
            self._open[number] = AttemptLog(self._run, self._task, number, is_marked=self._is_marked)
        return self._open[number]

    def leave(self, number: int) -> None:
        self._open.pop(number).close()

    def close(self) -> None:
        for number in list(self._open):
            self.leave(number)
