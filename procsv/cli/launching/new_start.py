"""Start of a new run: target, logdir and settings, checked as far as that is cheap.

Used by launch.py.  Imports nothing of the user's program.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from procsv.base.errors import LogdirLocked
from procsv.base.identity import WATCHDOG
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths, make_paths
from procsv.base.run.records import whose
from procsv.base.system.target import find_target
from procsv.base.text import is_remote
from procsv.cli.run_directory import make_new_directory, newest_directory
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start

LOGDIR = "{logdir}"  # in the program's arguments: the run's logdir


def make_start(
    logdir: str | None, target: str, args: tuple[str, ...], settings: LaunchSettings, begins_new: bool = False
) -> Start:
    """What the watchdog is told, having checked the target and the logdir; UserError says what is wrong.

    `begins_new`: where no logdir is told, this is not to go on with an earlier run.
    """
    found = find_target(target, Path.cwd())
    paths = _make_directory(logdir, found.name, begins_new, outlives_login=settings.detach)
    if logdir is not None and is_remote(logdir):
        click.echo(
            f"procsv: checkpoints and events go to {logdir}; journal, logs and reports to {paths.home}", err=True
        )
    where = logdir.rstrip("/") if logdir is not None and is_remote(logdir) else str(paths.logdir)
    return Start(
        task=WATCHDOG,
        run=secrets.token_hex(8),
        incarnation=1,
        logdir=where,
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        naming="anywhere" if logdir is None else "inside",
        names_logdir=logdir is not None,
        target=target,
        args=tuple(arg.replace(LOGDIR, where) for arg in (args[1:] if args[:1] == ("--",) else args)),
        settings=settings,
    )


def _make_directory(logdir: str | None, name: str, begins_new: bool, *, outlives_login: bool) -> RunPaths:
    directory: str | Path = logdir or newest_directory(name)
    try:
        if begins_new:
            directory = make_new_directory(name)
        paths = find_paths(directory, outlives_login=outlives_login)
        check_socket_paths(paths)  # all ids are of one length
        paths.logdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogdirLocked(f"the logdir {directory} cannot be created: {error.strerror}") from error
    try:
        return make_paths(directory, outlives_login=outlives_login)
    except OSError as error:
        raise LogdirLocked(
            f"the logdir {paths.logdir} cannot be written: {error.strerror or error}{whose(paths.home)}"
        ) from error
