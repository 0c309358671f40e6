"""`procsv ls [DIR]`: list the runs below a directory, with the state of each.

Called by main.py. The state of an active run comes from its watchdog, because run.json may be out
of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from procsv.base.encoding import indent_json
from procsv.base.errors import UserError
from procsv.base.run.run_file import RunFile
from procsv.base.system.output import make_console
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_duration
from procsv.cli.directory import FoundRun, find_runs
from procsv.cli.status import read_status, show_step
from procsv.report.losses import Losses

UNREADABLE = "not readable"
TAIL_BYTES = 2**14  # read from the end of each of the newest event files, so that the list appears at once
_SHOWN = (
    "state",
    "running",
    "elsewhere",
    "step",
    "durable_step",
    "restarts",
    "goodput",
    "started_at",
    "ended_at",
    "exit_code",
    "target",
    "args",
)


@click.command("ls")
@click.argument("directory", metavar="[DIR]", type=click.Path(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(directory: str, as_json: bool) -> None:
    """List the runs in DIR, in its subdirectories and under DIR/runs/, the newest first.

    DIR is the current directory if it is left out.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UserError(f"there is no directory {directory}")
    found, closed = find_runs(root)
    runs = [_as_data(one) for one in found] + [_as_closed(one) for one in closed]
    if as_json:
        click.echo(indent_json(runs))
    elif runs:
        _show(runs)
    else:
        click.echo(
            "there is no run here or under runs/; start one with procsv launch TARGET"
            if directory == "."
            else f"there is no run in {directory}"
        )


def _as_data(found: FoundRun) -> dict[str, Any]:
    status = read_status(found.run)
    shown = {name: status.get(name) for name in _SHOWN}
    return {"directory": str(found.directory), **shown, "loss": status.get("loss") or _newest_loss(found.run, status)}


def _as_closed(directory: Path) -> dict[str, Any]:
    """Describe a run whose files this user cannot read. All values are unknown."""
    return {"directory": str(directory), **dict.fromkeys(_SHOWN), "state": UNREADABLE, "loss": None}


def _newest_loss(run: RunFile, status: dict[str, Any]) -> dict[str, Any] | None:
    """Return the newest loss in the event files, ignoring steps beyond the run's current step."""
    losses = Losses(start=TAIL_BYTES)
    losses.read_files(run.checkpoint_dir)
    kept = [one for one in losses.scalars if one.step <= status["step"]]
    return {"name": losses.name, "step": kept[-1].step, "value": kept[-1].value} if kept else None


def _show(runs: list[dict[str, Any]]) -> None:
    now_s = SystemClock().wall()
    names = ("run", "state", "step", "on disk", "loss", "started", "target")
    table = make_table(names, right=("step", "on disk", "loss"))
    for run in runs:
        if run["state"] == UNREADABLE:
            table.add_row(as_markup(run["directory"]), UNREADABLE)
            continue
        style = "red" if run["state"] == "hung" else "green"
        where = f" on {run['elsewhere']}" if run["elsewhere"] else ""
        state = f"[{style}]{as_markup(run['state'])}[/]" if run["running"] else as_markup(run["state"] + where)
        ago = f"{show_duration(max(0.0, now_s - run['started_at']))} ago"
        steps = (show_step(run["step"]), show_step(run["durable_step"]))
        target = " ".join((run["target"], *run["args"]))
        loss = f"{run['loss']['value']:.4g}" if run["loss"] else "-"
        table.add_row(as_markup(run["directory"]), state, *steps, loss, ago, as_markup(target))
    make_console().print(table)
