"""`procsv ls [DIR]`: list the runs below a directory, with the state of each.

Called by main.py.  Reads run.json files only: no watchdog is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from procsv.base.encoding import indent_json
from procsv.base.errors import UserError
from procsv.base.run.run_file import FINAL_STATES
from procsv.base.system.output import make_console
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_duration
from procsv.cli.directory import FoundRun, list_runs
from procsv.cli.status import INTERRUPTED, show_step


@click.command("ls")
@click.argument("directory", metavar="[DIR]", type=click.Path(), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(directory: str, as_json: bool) -> None:
    """List the runs in DIR, in the directories in it and in those of its runs/, the newest first.

    DIR is the current directory if it is left out.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UserError(f"there is no directory {directory}")
    runs = [_as_data(one) for one in list_runs(root)]
    if as_json:
        click.echo(indent_json(runs))
    elif runs:
        _show(runs)
    else:
        click.echo("there is no run here or under runs/" if directory == "." else f"there is no run in {directory}")


def _as_data(found: FoundRun) -> dict[str, Any]:
    run = found.run
    is_dead = run.state not in FINAL_STATES and not run.is_active
    return {
        "directory": str(found.directory),
        "state": INTERRUPTED if is_dead else run.state,
        "running": found.is_running,
        "step": run.step,
        "durable_step": run.durable_step,
        "restarts": run.restarts,
        "goodput": run.goodput,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "exit_code": run.exit_code,
        "target": run.target,
        "args": list(run.args),
    }


def _show(runs: list[dict[str, Any]]) -> None:
    now_s = SystemClock().wall()
    table = make_table(("run", "state", "step", "on disk", "started", "target"), right=("step", "on disk"))
    for run in runs:
        state = f"[green]{as_markup(run['state'])}[/]" if run["running"] else as_markup(run["state"])
        ago = f"{show_duration(max(0.0, now_s - run['started_at']))} ago"
        steps = (show_step(run["step"]), show_step(run["durable_step"]))
        target = " ".join((run["target"], *run["args"]))
        table.add_row(as_markup(run["directory"]), state, *steps, ago, as_markup(target))
    make_console().print(table)
