"""DIR of a command: find the runs below a directory, and the one that is meant where DIR is left out.

Used by every command that takes a DIR.  Reads run.json files only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from procsv.base.errors import UserError
from procsv.base.run.adoption import root_of
from procsv.base.run.paths import find_paths, shorten_path
from procsv.base.run.run_file import RunFile, find_run_in
from procsv.base.terminal import printable
from procsv.cli.query import find_run

PLACES = (".", "*", "runs/*")  # below a directory; `procsv launch` makes runs/<target name>

CommandT = TypeVar("CommandT", bound=Callable[..., object])


class FoundRun(msgspec.Struct, frozen=True):
    directory: Path  # as somebody would write it here
    run: RunFile

    @property
    def is_running(self) -> bool:
        return self.run.is_active and self.run.ended_at is None


def list_runs(root: Path) -> list[FoundRun]:
    """The runs in `root`, in the directories in it and in those of its `runs`; the newest first."""
    directories = {file.parent.parent for place in PLACES for file in root.glob(f"{place}/procsv/run.json")}
    found = []
    for directory in directories:
        if root_of(directory) is not None:  # a run elsewhere has adopted it since
            continue
        with contextlib.suppress(UserError, PermissionError):  # damaged, or another user's
            found.append(FoundRun(directory, find_run(str(directory))))
    return sorted(found, key=lambda one: (-one.run.started_at, one.directory))


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The runs here and under runs/, or else any directory."""
    names = [str(one.directory) for one in list_runs(Path())]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def directory_argument(*, changes_run: bool = False, of_checkpoints: bool = False) -> Callable[[CommandT], CommandT]:
    """The argument DIR: the run's own directory, whichever of its two was given; `of_checkpoints`: the one with these.

    A command that `changes_run` takes the one run that is active: it never guesses.
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
        raise UserError(f"several runs are active; name the one that is meant: {names}")
    return str(active[0].directory)
