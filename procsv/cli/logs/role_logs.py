"""Read the logs of one role: list its attempts, and read their output.

A role is a task, a service, a standby, or the watchdog of a run with `--detach`. On several
machines, the standby and the summary service of a member are named after its task:
`standby-worker.0`, `summary-worker.0`.

Used by command.py, which prints a separator above each attempt. The separator says how the previous
attempt ended. This module only reads files, and never waits for output.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

from procsv.base.errors import UserError
from procsv.base.journal.entries import Exited, RunStarted, Spawned
from procsv.base.journal.file import read_journal
from procsv.base.run.logs import LogFollower, list_numbers, newest_number, older_part
from procsv.base.run.run_file import RunFile
from procsv.base.terminal import printable
from procsv.watchdog.core.reporting.wording import sentence

CHUNK_BYTES = 2**16
ROLE_WIDTH = 10


def list_roles(run: RunFile) -> list[str]:
    """Return the roles that have a log."""
    return sorted({path.name.rsplit(".", 2)[0] for path in run.paths.logs.glob("*.*.log")})


def list_roles_on(run: RunFile, host: str) -> list[str]:
    """Return the roles that have a log and whose task the newest launch runs on `host`.

    Raises UserError if there are none.
    """
    started = [line.entry for line in read_journal(run.paths.journal) if isinstance(line.entry, RunStarted)]
    hosts = started[-1].hosts if started else {}
    found = [role for role in list_roles(run) if hosts.get(role.partition("-")[2] or role) == host]
    if not found:
        there = f"its machines are {', '.join(sorted(set(hosts.values())))}" if hosts else "it is on one machine"
        raise UserError(f"no task of this run is on {host!r}: {there}")
    return found


def log_of(run: RunFile, role: str, number: int) -> Path:
    return run.paths.logs / f"{role}.{number}.log"


class RoleLogs:
    """The output of one role, one attempt at a time.

    `is_marked`: prefix each line with the role.
    """

    def __init__(self, run: RunFile, role: str, *, is_marked: bool = False) -> None:
        self.role = role
        self.opened: AttemptLog | None = None  # the attempt being read
        self._run, self._is_marked = run, is_marked

    def numbers(self) -> list[int]:
        return list_numbers(self._run.paths.logs, self.role)

    def newest(self) -> int:
        return newest_number(self._run.paths.logs, self.role)

    def printed_at(self, number: int) -> float:
        """Return the Unix time of the attempt's last output."""
        times_s = [0.0]
        log = log_of(self._run, self.role, number)
        for path in (log, older_part(log)):
            with contextlib.suppress(OSError):
                times_s.append(path.stat().st_mtime)
        return max(times_s)

    def open(self, number: int) -> AttemptLog:
        """Open that attempt and close the current one."""
        self.close()
        self.opened = AttemptLog(self._run, self.role, number, is_marked=self._is_marked)
        return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


class AttemptLog:
    """The log of one attempt, from its beginning.

    `is_marked`: prefix each line with the role, and return only whole lines.
    """

    def __init__(self, run: RunFile, role: str, number: int, *, is_marked: bool) -> None:
        self.number = number
        self._run, self._role, self._is_marked = run, role, is_marked
        self._follower: LogFollower | None = None
        self._rest = b""  # the beginning of an unfinished line, if lines are marked
        with contextlib.suppress(OSError):  # the log has just been removed
            self._follower = LogFollower(log_of(run, role, number), with_older=True)

    def read_output(self, is_last: bool) -> bytes:
        """Return the next part of the output; b"" if there is none now.

        `is_last`: no process writes to the log any more.
        """
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
        return b"" if self._follower is None else self._follower.read_log(CHUNK_BYTES, is_last=is_last)

    def separator(self) -> bytes:
        """Return the separator: how the previous attempt ended, and when this one started."""
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
            ending = sentence(last.cause, last.evidence, last.step)
            text = f"{self._role} {self.number - 1} {ending} ── {text}"
        return f"── {printable(text)} ──\n".encode()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
