"""`procsv logs [DIR]`: show what a run's processes printed; -f follows them through restarts.

Called by main.py. It only reads files.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import BinaryIO

import click

from procsv.base.errors import UserError
from procsv.base.identity import PROGRAM_ROLES, TRAINER
from procsv.base.run.run_file import RunFile
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import OutputFilter
from procsv.cli.directory import directory_argument, find_host, find_run
from procsv.cli.logs.role_logs import AttemptLog, RoleLogs, list_roles, list_roles_on
from procsv.cli.usage.completion import complete_roles
from procsv.cli.values import Duration

POLL_S = 0.2


@click.command("logs")
@directory_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the log, through restarts, until the run ends.")
@click.option(
    "-n",
    "lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show only the last N lines of what there is; with --all, of each log.",
)
@click.option(
    "--since",
    "since_s",
    type=Duration(),
    metavar="TIME",
    help="Show every attempt that printed something within this time, for example 10m.",
)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Show this attempt, not the newest.")
@click.option(
    "--role",
    default=None,
    show_default="trainer, or the chief of several tasks",
    metavar="R",
    shell_complete=complete_roles,
    help="trainer, a task such as worker.1, standby, checkpoint, summary, or watchdog (with --detach).",
)
@click.option(
    "--node", metavar="HOST", help="On a run on several machines: show the tasks of this machine, as --all does."
)
@click.option("--all", "is_all", is_flag=True, help="Show all roles, one log after another, each line with its role.")
def command(
    directory: str,
    follow: bool,
    lines: int | None,
    since_s: float | None,
    attempt: int | None,
    role: str | None,
    node: str | None,
    is_all: bool,
) -> None:
    """Show what the newest process of a role has printed.

    Where there are several attempts, a line above each says how the one before ended.
    """
    if attempt is not None and (follow or since_s is not None):
        raise click.UsageError("--attempt shows one attempt; leave out --follow and --since")
    if node is not None and role is not None:
        raise click.UsageError("--node shows all tasks of a machine, and --role one task: give one of them")
    run = find_run(directory)
    role, is_all = role or run.task, is_all or node is not None
    roles = list_roles(run) if node is None else list_roles_on(run, node)
    all_logs = [RoleLogs(run, one, is_marked=is_all) for one in (roles if is_all else [role])]
    chosen = {logs: _choose(logs, since_s, attempt) for logs in all_logs}
    if not any(chosen.values()) and follow and not is_all and _may_still_start(run, role):
        click.echo(f"the {role} has printed nothing yet; waiting for it", err=True)
    elif not any(chosen.values()):
        _raise_no_log(run, all_logs[0] if all_logs else RoleLogs(run, role), role, attempt, since_s)
    out = Output(sys.stdout.buffer)
    try:
        _show(chosen, out, lines, is_all=is_all, is_separated=is_all or since_s is not None, is_over=_is_over(run))
        if follow:
            _follow(run, all_logs, out)
        out.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()
    finally:
        for logs in all_logs:
            logs.close()


def _choose(logs: RoleLogs, since_s: float | None, attempt: int | None) -> list[int]:
    """Return the numbers of the attempts to show; none if no log matches."""
    numbers = logs.numbers()
    if attempt is not None:
        return [attempt] if attempt in numbers else []
    if since_s is not None:
        from_s = SystemClock().wall() - since_s
        return [number for number in numbers if logs.printed_at(number) >= from_s]
    return numbers[-1:]


def _is_over(run: RunFile) -> bool:
    return not run.is_active and not find_host(run)


def _may_still_start(run: RunFile, role: str) -> bool:
    """Whether the run may still start a process with that role."""
    several = run.task != str(TRAINER) and role.partition(".")[0] in PROGRAM_ROLES
    return not _is_over(run) and (role == run.task or several)


def _raise_no_log(run: RunFile, logs: RoleLogs, role: str, attempt: int | None, since_s: float | None) -> None:
    numbers = logs.numbers()
    if numbers and since_s is not None:
        raise UserError(f"{logs.role} has printed nothing in that time")
    if numbers:
        there = ", ".join(map(str, numbers))
        raise UserError(f"there is no log of attempt {attempt} of {logs.role} in {run.paths.logs}; there are: {there}")
    roles = ", ".join(list_roles(run)) or "none"
    raise UserError(f"there is no log of {role!r} in {run.paths.logs}; there are: {roles}")


def _show(
    chosen: dict[RoleLogs, list[int]],
    out: Output,
    lines: int | None,
    *,
    is_all: bool,
    is_separated: bool,
    is_over: bool,
) -> None:
    """Print the chosen attempts one after another.

    `lines`: print only that many lines from the end; with `is_all`, that many of each attempt.
    `is_separated`: print a separator above each attempt. `is_over`: the run has ended.
    """
    if not is_all:
        out.begin_tail(lines)
    for logs, numbers in chosen.items():
        for number in numbers:
            attempt = logs.open(number)
            if is_separated:
                out.separate(attempt.separator())
            if is_all:
                out.begin_tail(lines)
            _copy(attempt, out, is_last=is_over or number != logs.newest())
            if is_all:
                out.end_tail()
    out.end_tail()


def _follow(run: RunFile, all_logs: list[RoleLogs], out: Output) -> None:
    pause, is_over = threading.Event(), False
    while not is_over:
        is_over = _is_over(run)  # checked before reading, so that the last output is still shown
        for logs in all_logs:
            _print_new_output(logs, out, is_over)
        out.flush()
        if not is_over:
            pause.wait(POLL_S)


def _print_new_output(logs: RoleLogs, out: Output, is_over: bool) -> None:
    """Print the new output of a role. If the role was restarted, switch to its newest attempt."""
    newest, attempt = logs.newest(), logs.opened
    if attempt is not None:
        _copy(attempt, out, is_last=newest != attempt.number or is_over)
    if newest != (attempt.number if attempt is not None else 0):
        attempt = logs.open(newest)
        out.separate(attempt.separator())
        _copy(attempt, out, is_last=is_over)


def _copy(attempt: AttemptLog, out: Output, *, is_last: bool) -> None:
    while data := attempt.read_output(is_last):
        out.write(data)


class Output:
    """The terminal or file that the logs are copied to.

    On a terminal, control sequences are filtered out. Between `begin_tail` and `end_tail`, the
    output is kept, and `end_tail` writes only its last lines.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._filter = OutputFilter() if stream.isatty() else None
        self._lines: deque[bytes] | None = None  # None outside begin_tail and end_tail
        self._rest = b""  # the unfinished last line of the kept output
        self._is_at_start = True  # whether the next byte begins a line

    def write(self, data: bytes) -> None:
        if self._lines is not None:
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += (line + b"\n" for line in lines)
        elif data:
            self._stream.write(self._filter.pass_on(data) if self._filter is not None else data)
            self._is_at_start = data.endswith(b"\n")

    def separate(self, line: bytes) -> None:
        """Write a line of our own, first completing an unfinished line of the program."""
        is_at_start = not self._rest if self._lines is not None else self._is_at_start
        self.write((b"" if is_at_start else b"\n") + line)

    def begin_tail(self, lines: int | None) -> None:
        """Keep only the last lines of what is written until `end_tail`; `lines` None keeps all."""
        self._lines = None if lines is None else deque(maxlen=lines)

    def end_tail(self) -> None:
        if self._lines is None:
            return
        lines, self._lines = self._lines, None
        if self._rest and lines.maxlen:
            lines.append(self._rest)
        self.write(b"".join(lines))
        self._rest = b""

    def flush(self) -> None:
        self._stream.flush()
