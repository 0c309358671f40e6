"""Find the run that the DIR argument of a command names, or choose a run if DIR is omitted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE
from procsv.base.location import local_path
from procsv.base.run.adoption import root_of
from procsv.base.run.lease import find_elsewhere
from procsv.base.run.paths import find_paths, shorten_path
from procsv.base.run.run_file import FINAL_STATES, RunFile, find_run_in
from procsv.base.run.saved_step import saved_step
from procsv.base.system.data_file import open_data
from procsv.base.terminal import printable
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Body

ASK_S_MAX = 0.7  # `status` answers within one second, whatever the trainer does
PLACES = ("*", "runs/*")  # where `find_runs` looks below a directory; `procsv launch` makes runs/<target name>

CommandT = TypeVar("CommandT", bound=Callable[..., object])


class FoundRun(msgspec.Struct, frozen=True):
    directory: Path  # as a user would type it from the current directory
    run: RunFile

    @property
    def is_running(self) -> bool:
        return self.run.is_active and self.run.ended_at is None


def list_runs(root: Path) -> list[FoundRun]:
    """Return the run in `root` and the runs below it (in PLACES), newest first."""
    return find_runs(root)[0]


def find_runs(root: Path) -> tuple[list[FoundRun], list[Path]]:
    """Return what `list_runs` returns, and the directories of runs that this user cannot read."""
    found, closed = list[FoundRun](), list[Path]()
    for directory in {root, *(one for place in PLACES for one in root.glob(place))}:
        try:
            if not (directory / "procsv" / "run.json").exists() or root_of(directory) is not None:
                continue  # no run, or the program's logdir of a run whose own directory is elsewhere
            found.append(FoundRun(directory, find_run(str(directory))))
        except PermissionError:
            if _may_be_run(directory):
                closed.append(directory)
        except (UserError, OSError):
            continue  # damaged, or on a mount that does not answer
    places = dict[str, FoundRun]()
    for one in sorted(found, key=lambda one: (one.directory.is_symlink(), one.directory)):
        places.setdefault(os.path.realpath(one.directory), one)  # a symbolic link to a run's directory is the same run
    # An active run comes before a copy of its directory, which has the same start time.
    order = sorted(places.values(), key=lambda one: (-one.run.started_at, not one.is_running, one.directory))
    return order, sorted(closed)


def _may_be_run(directory: Path) -> bool:
    """Whether a directory that this user cannot read looks like a run's.

    It does if it is directly under runs/, or has a subdirectory procsv.
    """
    try:
        return directory.absolute().parent.name == "runs" or (directory / "procsv").is_dir()
    except PermissionError:
        return False


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the directories of runs here and under runs/; if none matches, any directory."""
    names = [str(one.directory) for one in list_runs(Path())]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def directory_argument(*, changes_run: bool = False, of_checkpoints: bool = False) -> Callable[[CommandT], CommandT]:
    """Declare the argument DIR and resolve it to the run's own directory.

    The user may give the run's own directory or the logdir that the program names. If DIR is
    omitted, the command takes the newest run. A command with `changes_run` takes the only active
    run instead, and refuses to choose between several. With `of_checkpoints`, resolve DIR to the
    directory that holds the run's checkpoints.
    """

    def find(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if ctx.resilient_parsing:
            return value
        directory = value
        if directory is None:
            directory = _only_active() if changes_run else _newest()
            click.echo(f"procsv: the run in {printable(directory)}", err=True)
        elif (root := root_of(directory)) is not None:
            directory = shorten_path(str(root))
        return _checkpoint_dir(directory) if of_checkpoints else directory

    return click.argument(
        "directory", metavar="[DIR]", type=click.Path(), required=False, callback=find, shell_complete=complete_runs
    )


def _checkpoint_dir(directory: str) -> str:
    run = find_run_in(find_paths(directory))
    return run.logdir if run is not None and run.root else directory


def _newest() -> str:
    runs = list_runs(Path())
    if not runs:
        raise UserError("there is no run here or under runs/; name its directory")
    return str(runs[0].directory)


def _only_active() -> str:
    active = [one for one in list_runs(Path()) if one.is_running]
    if not active:
        raise UserError("no run is active here or under runs/; name its directory", exit_code=1)
    if len(active) > 1:
        names = ", ".join(str(one.directory) for one in active)
        raise UserError(f"several runs are active; name the one that you mean: {names}")
    return str(active[0].directory)


def find_run(directory: str) -> RunFile:
    """Return the run in `directory`; UserError if there has never been one."""
    path, paths = directory, find_paths(directory)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        # If run.json belongs to another user, or is not a file, find_run_in only finds no run. open_data raises
        # PermissionError or NotAFile, so that the message names the cause.
        os.close(open_data(paths.run_json))
    run = find_run_in(paths)
    if run is not None:
        return run if run.state in FINAL_STATES or run.is_active else _with_later_saves(run)
    if not paths.logdir.is_dir():
        raise UserError(
            f"no run of {path} is known on this machine; look on the machine that ran it"
            if local_path(path) is None
            else f"there is no directory {path}"
        )
    if paths.run_json.exists():
        raise UserError(f"{paths.run_json} cannot be read: it is damaged, or of another version of procsv")
    raise UserError(f"{path} is not the logdir of a run: it has no procsv/run.json")


def find_host(run: RunFile) -> str:
    """Return the other machine or container on which the run may be alive; "" if there is none."""
    lease = None if run.is_active or run.ended_at is not None else find_elsewhere(run.paths, run.run)
    return lease.place.host if lease is not None else ""


def refuse_elsewhere(run: RunFile) -> None:
    """Raise UserError if the run may be alive on another machine or in another container."""
    if host := find_host(run):
        raise UserError(f"process {run.pid} on {host} has the run in {run.logdir}: give the command there", 1)


def _with_later_saves(run: RunFile) -> RunFile:
    """Return `run`, whose watchdog was killed, with the steps that were saved since.

    The services may have saved newer steps after the watchdog's death. Only the files beside the
    checkpoints record these steps; run.json does not.
    """
    saved = saved_step(run.checkpoint_dir)
    durable_step = max(run.durable_step, saved)
    return msgspec.structs.replace(run, durable_step=durable_step, step=max(run.step, durable_step))


def ask_watchdog(run: RunFile, question: Message, limit_s: float = ASK_S_MAX) -> Body | None:
    """Return the watchdog's answer, or None if none arrives within `limit_s`."""
    from procsv.base.system.system_clock import SystemClock
    from procsv.ipc.messaging.endpoint import Address
    from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context

    socket_path = run.paths.control_socket
    if not os.access(socket_path, os.W_OK):
        return None  # there is no socket, or this user may not write to it
    clock, context = SystemClock(), new_context()
    client = Client(context, socket_path, Address("", COMMAND_LINE, 1), clock)
    try:
        waiter = Waiter()
        waiter.register(client)
        until_s = clock.monotonic() + limit_s
        seq = client.send_reliable(question)
        while (left_s := until_s - clock.monotonic()) > 0:
            waiter.wait(left_s)
            client.resend_due()
            while (received := client.receive()) is not None:
                if received.re == seq:
                    return received.body
    finally:
        client.close(linger_ms=0)
        context.term()
    return None
