"""`procsv stop DIR`: ask the run to end, wait for its end, and report it.

Called by main.py. The run ends even if this command is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

import click

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.run.paths import find_paths
from procsv.base.run.records import user_name
from procsv.base.run.run_file import RunFile, holds_run_lock
from procsv.base.system.locks import FileLock
from procsv.base.system.process_state import has_open
from procsv.base.terminal import printable
from procsv.cli.directory import ask_watchdog, directory_argument, find_run, refuse_elsewhere
from procsv.ipc.messaging.watchdog_messages import StopRun

ASK_S_MAX = 5.0  # a watchdog answers at once; one that is stopped (Ctrl-Z) does not
LOOK_S = 1.0  # the longest single wait; Ctrl-C may take this long to have an effect
HINT_S = 30.0  # after this, suggest --now: a program that `procsv launch` did not start may ignore the request


@click.command("stop")
@directory_argument(changes_run=True)
@click.option("--now", is_flag=True, help="Do not wait for the program; its newest snapshot is still saved.")
def command(directory: str, now: bool) -> None:
    """End the run in DIR and wait until it has ended. The same launch command resumes it.

    A program that was not started by `procsv launch` is asked to stop, and killed only with --now.
    """
    run = find_run(directory)
    pidfd = _open_watchdog(run)
    launch = _open_launch(run) if pidfd is None else None
    if pidfd is not None:
        _stop_run(run, now, pidfd, directory)
    elif launch is not None:
        _stop_launch(run, *launch)
    else:
        refuse_elsewhere(run)
        click.echo(printable(f"no run is active in {run.logdir}: {_describe_end(run)}"))
        return
    after = find_run(directory)
    if after.run == run.run and launch is not None:
        click.echo("ended: it had not begun a run")
        return
    if after.run != run.run and after.is_active and after.ended_at is None:
        click.echo(f"ended; another launch has begun there since (process {after.pid})")
        return
    click.echo(printable(f"ended: {_describe_end(after)}"))
    sys.exit(0 if after.exit_code == exit_codes.DONE or after.state == "stopped" else 1)


def _stop_run(run: RunFile, now: bool, pidfd: int, directory: str) -> None:
    try:
        _ask_to_end(run, now, pidfd)
        click.echo(printable(f"stopping {run.target} (process {run.pid}){' now' if now else ''} …"))
        if not select.select([pidfd], [], [], HINT_S)[0] and not now:
            click.echo(f"the program has not stopped yet; `procsv stop --now {directory}` kills it")
        while not select.select([pidfd], [], [], LOOK_S)[0]:
            pass  # no limit here: the watchdog has a deadline if `procsv launch` started the program
    finally:
        os.close(pidfd)


def _stop_launch(run: RunFile, pid: int, pidfd: int) -> None:
    try:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        click.echo(printable(f"stopping a launch that is about to begin in {run.logdir} (process {pid}) …"))
        while not select.select([pidfd], [], [], LOOK_S)[0]:
            pass
    finally:
        os.close(pidfd)


def _open_launch(run: RunFile) -> tuple[int, int] | None:
    """Return pid and pidfd of a launch that has locked the logdir but not yet written run.json.

    Such a launch may be waiting until the processes of an earlier run end, or until the lease of
    another machine runs out. Returns None if there is no such launch.
    """
    for outlives_login in (False, True):  # the lock of `procsv launch`, and of `procsv launch --detach`
        lock = FileLock(find_paths(run.paths.logdir, outlives_login=outlives_login).run_lock)
        with contextlib.suppress(OSError):  # the lock is another user's, or the launch has just ended
            holder = lock.holder() if lock.is_held() else None
            if holder is None or holder.is_brief or (holder.pid == run.pid and run.is_active):
                continue
            pidfd = os.pidfd_open(holder.pid)
            if has_open(holder.pid, lock.path):
                return holder.pid, pidfd
            os.close(pidfd)
    return None


def _open_watchdog(run: RunFile) -> int | None:
    """Return a pidfd of the watchdog, or None if the watchdog is dead or the run has ended.

    Another process may have the watchdog's pid by now. Only the watchdog holds the run's lock.
    """
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(run.pid)
        if run.is_active and run.ended_at is None and _is_ours_to_end(run):
            return pidfd
        os.close(pidfd)
    return None


def _is_ours_to_end(run: RunFile) -> bool:
    """Return whether the process that `run` names still holds the run's lock.

    Raises UserError if the run is another user's.
    """
    try:
        return holds_run_lock(run)
    except PermissionError:
        owner = user_name(run.paths.run_json.stat().st_uid)
        raise UserError(f"the run in {run.logdir} is {owner}'s; only they can end it", exit_code=1) from None


def _ask_to_end(run: RunFile, now: bool, pidfd: int) -> None:
    if ask_watchdog(run, StopRun(now), ASK_S_MAX) is not None:
        return
    # If the control socket was deleted, the watchdog makes it again soon. A signal works without it.
    if not run.paths.control_socket.exists():
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    elif not select.select([pidfd], [], [], 0)[0]:
        raise UserError(f"process {run.pid} does not answer; if it is stopped, `kill -CONT {run.pid}` wakes it", 1)


def _describe_end(run: RunFile) -> str:
    at = f" at step {run.step}" if run.step >= 0 else ""
    durable = f"; step {run.durable_step} is on disk" if run.durable_step >= 0 else ""
    if run.ended_at is None:
        return f"it was {run.state}{at} when its watchdog was killed{durable}"
    return f"{run.state}{at}{durable}" + (f" (exit code {run.exit_code})" if run.exit_code is not None else "")
