"""`procsv logs DIR`: show the log of a role's newest process; -f follows it through restarts.

Called by main.py.  Reads files only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.run.logs import LogFollower, newest_number
from procsv.base.run.run_file import RunFile
from procsv.base.terminal import OutputFilter
from procsv.cli.directory import directory_argument
from procsv.cli.query import find_run

POLL_S = 0.2
CHUNK_BYTES = 2**16


class Output(msgspec.Struct, frozen=True):
    """Where a log is shown; a terminal is spared what it would obey."""

    stream: BinaryIO
    filter: OutputFilter | None


@click.command("logs")
@directory_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the log, through restarts, until the run ends.")
@click.option(
    "--role",
    default="trainer",
    show_default=True,
    metavar="R",
    help="trainer, standby, checkpoint, summary, or watchdog (with --detach).",
)
def command(directory: str, follow: bool, role: str) -> None:
    """Show what the newest process of a role has printed."""
    run = find_run(directory)
    log = newest_log(run, role)
    if log is None:
        roles = sorted({path.name.rsplit(".", 2)[0] for path in run.paths.logs.glob("*.*.log")})
        raise UserError(f"there is no log of {role!r} in {run.paths.logs}; there are: {', '.join(roles) or 'none'}")
    out = Output(sys.stdout.buffer, OutputFilter() if sys.stdout.isatty() else None)
    try:
        if follow:
            _follow(run, role, log, out)
        else:
            with contextlib.closing(LogFollower(log, with_older=True)) as file:
                _copy(file, out, is_last=True)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()


def newest_log(run: RunFile, task: str) -> Path | None:
    number = newest_number(run.paths.logs, task)
    return run.paths.log(TaskId.parse(task), number) if number else None


def _follow(run: RunFile, role: str, log: Path, out: Output) -> None:
    pause = threading.Event()
    while True:
        with contextlib.closing(LogFollower(log, with_older=True)) as file:
            newest: Path | None = log
            alive = True
            while newest == log and alive:
                alive = run.is_active  # before the reading: what was printed last is still shown
                newest = newest_log(run, role)
                _copy(file, out, is_last=newest != log or not alive)
                if newest == log and alive:
                    pause.wait(POLL_S)
        if newest is None or newest == log:
            return
        log = newest


def _copy(log: LogFollower, out: Output, is_last: bool) -> None:
    while data := log.read(CHUNK_BYTES, is_last=is_last):
        out.stream.write(out.filter.pass_on(data) if out.filter is not None else data)
    out.stream.flush()
