"""Prepare the start of a run: resolve target, logdir and settings, and do the cheap checks.

Used by launch.py. It imports nothing of the user's program.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from procsv.base.cluster import CHIEF, EVALUATOR, PS, WORKER
from procsv.base.errors import LogdirLocked, UserError
from procsv.base.identity import WATCHDOG
from procsv.base.location import is_remote
from procsv.base.placement import Placement
from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.base.run.paths import RunPaths, check_socket_paths, find_paths, make_paths, name_logdir
from procsv.base.run.records import whose
from procsv.base.run.run_file import read_run
from procsv.base.system.processes import check_descriptors, check_pidfd
from procsv.base.system.target import find_target, parse_target
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start

# A run without --logdir goes to `runs/<target>`. Each `--new` makes the next `runs/<target>-N`.
RUNS = Path("runs")
LOGDIR = "{logdir}"  # placeholder in the program's arguments


def make_start(
    logdir: str | None, target: str, args: tuple[str, ...], settings: LaunchSettings, begins_new: bool = False
) -> Start:
    """Check the target and the logdir and return the watchdog's start message; UserError says what
    is wrong.

    `begins_new`: without a logdir, begin a new run instead of resuming the newest one.
    """
    found = find_target(target, Path.cwd())
    paths = _make_directory(logdir, found.name, begins_new, outlives_login=settings.detach)
    where = name_logdir(logdir or "", paths)
    if where != str(paths.logdir):
        click.echo(
            f"procsv: checkpoints and events go to {logdir}; journal, logs and reports to {paths.home}", err=True
        )
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
    check_pidfd()
    check_descriptors()
    directory: str | Path = logdir or newest_directory(name)
    try:
        if begins_new:
            directory = make_new_directory(name)
        paths = find_paths(directory, outlives_login=outlives_login)
        check_socket_paths(paths)  # all run ids have the same length, so one check covers them
        paths.logdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogdirLocked(f"the logdir {directory} cannot be created: {error.strerror}") from error
    try:
        return make_paths(directory, outlives_login=outlives_login)
    except OSError as error:
        raise LogdirLocked(
            f"the logdir {paths.logdir} cannot be written: {error.strerror or error}{whose(paths.home)}"
        ) from error


def newest_directory(name: str) -> Path:
    """Return the directory of the newest run of `name`; without any, the directory for the first."""
    return max(_numbered(name), default=(1, RUNS / name))[1]


def make_new_directory(name: str) -> Path:
    """Create the directory of the next run and return it. Raises OSError."""
    newest = max((number for number, _ in _numbered(name)), default=0)
    for number in itertools.count(newest + 1):
        directory = RUNS / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):  # another launch has just made it
            directory.mkdir(parents=True)
            return directory
    raise AssertionError("there is always a next number")


def _numbered(name: str) -> list[tuple[int, Path]]:
    """Return the number and the directory of each existing run of target `name`.

    A directory without a number has number 1. If another target is itself called `name`-N, its run is left out.
    """
    found = [(1, RUNS / name)] if (RUNS / name).is_dir() else []
    for directory in RUNS.glob("*-*"):
        stem, _, number = directory.name.rpartition("-")
        if stem == name and number.isdecimal() and int(number) > 1 and directory.is_dir() and _is_run(directory):
            found.append((int(number), directory))
    return found


def _is_run(directory: Path) -> bool:
    """Return whether `directory`, whose name ends in a number, is a numbered run that a launch made.

    It may be a directory that the user made and named after a date, for example, or the run of a
    target whose own name ends in this number. An empty directory counts as a launch's: a launch may
    have made it a moment ago.
    """
    run = read_run(directory / "procsv" / "run.json")
    if run is not None:
        return _name_of(run.target) != directory.name
    with contextlib.suppress(OSError):  # unreadable, so perhaps another user's run; the launch reports that
        names = [path.name for path in directory.iterdir()]
        return not names or "procsv" in names or any(name.endswith(MANIFEST_SUFFIX) for name in names)
    return True


def _name_of(target: str) -> str:
    """Return the name of `target`, which an earlier launch had; "" if it is no longer valid."""
    with contextlib.suppress(UserError):
        return parse_target(target, Path.cwd()).name
    return ""


def check_tasks(settings: Mapping[str, Any]) -> None:
    """Raise a usage error if --no-chief, --restart or --standby does not go with the number of
    tasks.
    """
    tasks = settings["workers"] or settings["ps"] or settings["evaluators"]
    if not settings["has_chief"] and not settings["workers"]:
        raise click.UsageError(
            "--no-chief makes worker 0 the task whose state is saved; say with --workers how many workers there are"
        )
    if settings["restart"] == "gang" and settings["workers"] + settings["has_chief"] < 2:
        raise click.UsageError("--restart gang is for tasks that train together; say how many with --workers")
    if tasks and settings["standby"] == "hot":
        raise click.UsageError(
            "--standby hot runs the program as its one trainer; with several tasks, use --standby warm"
        )


def check_min_workers(settings: Mapping[str, Any]) -> None:
    """Raise a usage error if --min-workers does not go with the tasks or with --restart gang.

    `settings` must count all tasks, also those that TF_CONFIG or a scheduler has named.
    """
    least, workers = settings["min_workers"], settings["workers"]
    if least is None:
        return
    if not workers:
        raise click.UsageError("--min-workers is for tasks that train beside a chief; say how many with --workers")
    if least > workers:
        raise click.UsageError(f"--min-workers {least} is more than there are: --workers is {workers}")
    if settings["restart"] == "gang":
        raise click.UsageError(
            "--min-workers cannot go with --restart gang: a gang takes no step without all of its own"
        )


def check_consistent_snapshots(settings: Mapping[str, Any]) -> None:
    """Raise a usage error if --consistent-snapshots is given and there are no parameter servers.

    `settings` must count all tasks, also those that TF_CONFIG or a scheduler has named.
    """
    if settings["consistent_snapshots"] and not settings["ps"]:
        raise click.UsageError(
            "--consistent-snapshots is for variables on parameter servers; say with --ps how many servers there are"
        )


def settings_of(
    placement: Placement, logdir: str | None, settings: Mapping[str, Any], *, has_secret: bool
) -> dict[str, Any]:
    """Return the settings of launch that `placement` determines: how many tasks of each kind.

    Raises a usage error for options that do not work on several machines.
    """
    if logdir is None:
        raise click.UsageError(f"--logdir is needed: all {placement.ranks} launches of this run share one")
    if is_remote(logdir) and (placement.coordinator is None or not has_secret):
        how = (
            "give all of them a --secret-file"
            if placement.coordinator is not None
            else "start them with TF_CONFIG and a --secret-file"
        )
        raise click.UsageError(
            f"{logdir} is not a directory, so the launches of this run cannot meet in it: {how}, so that they find each other by address"
        )
    if settings["detach"]:
        raise click.UsageError("--detach would end this process, which its scheduler takes for the task")
    count = Counter(task.role for task in placement.tasks)
    roles = {"workers": count[WORKER], "ps": count[PS], "evaluators": count[EVALUATOR]}
    return {**roles, "has_chief": CHIEF in placement.tasks}
