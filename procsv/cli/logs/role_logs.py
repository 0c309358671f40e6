"""Logs of a role: which attempts there are, and those of them that are being read.

Used by command.py.  Reads files only.
"""

from __future__ import annotations

import contextlib

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.journal.entries import RunStarted
from procsv.base.journal.file import read_journal
from procsv.base.run.logs import list_numbers, newest_number, older_part
from procsv.base.run.run_file import RunFile
from procsv.cli.logs.attempt_log import AttemptLog


def list_roles(run: RunFile) -> list[str]:
    """The roles of which there is a log."""
    return sorted({path.name.rsplit(".", 2)[0] for path in run.paths.logs.glob("*.*.log")})


def list_roles_on(run: RunFile, host: str) -> list[str]:
    """Those of the tasks that this machine has, in the newest launch; UserError if it has none."""
    started = [line.entry for line in read_journal(run.paths.journal) if isinstance(line.entry, RunStarted)]
    hosts = started[-1].hosts if started else {}
    found = [role for role in list_roles(run) if hosts.get(role.removeprefix("standby-")) == host]
    if not found:
        there = f"its machines are {', '.join(sorted(set(hosts.values())))}" if hosts else "it is on one machine"
        raise UserError(f"no task of this run is on {host!r}: {there}")
    return found


class RoleLogs:
    """One role's output, one attempt at a time.  `is_marked`: each line begins with the role."""

    def __init__(self, run: RunFile, role: str, *, is_marked: bool = False) -> None:
        self.role = role
        self.opened: AttemptLog | None = None  # the attempt that is being read
        self._run, self._task, self._is_marked = run, TaskId.parse(role), is_marked

    def numbers(self) -> list[int]:
        return list_numbers(self._run.paths.logs, self.role)

    def newest(self) -> int:
        return newest_number(self._run.paths.logs, self.role)

    def printed_at(self, number: int) -> float:
        """Unix time at which that attempt has printed last."""
        times_s = [0.0]
        log = self._run.paths.log(self._task, number)
        for path in (log, older_part(log)):
            with contextlib.suppress(OSError):
                times_s.append(path.stat().st_mtime)
        return max(times_s)

    def open(self, number: int) -> AttemptLog:
        """That attempt, in the place of the one that is being read."""
        self.close()
        self.opened = AttemptLog(self._run, self._task, number, is_marked=self._is_marked)
        return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None
