"""`procsv checkpoints DIR`: list the checkpoints and their defects.

Called by main.py. procsv.cli must not import a service, so this command starts a separate process.
There, the checkpoint service's own code reads the checkpoints. It changes nothing, so the command
may run beside a live run.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click

from procsv.base.encoding import decode_json, indent_json
from procsv.base.errors import UserError
from procsv.base.system.output import make_console
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_duration, show_size
from procsv.cli.directory import directory_argument
from procsv.ipc.messaging.start import safe_path

INVENTORY = "procsv.services.checkpoint.tools.inventory"


@click.command("checkpoints")
@directory_argument(of_checkpoints=True)
@click.option("--verify", is_flag=True, help="Read every byte and compare it with the checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: str, verify: bool, as_json: bool) -> None:
    """List the checkpoints in DIR: step, size, age, the reason for each, and what is wrong with it.

    Reason: start, periodic, final, crash or preempt for procsv's own; manual for saves of the program's own and for the
    one before a planned restart; - for others.  Exit code 0 if every checkpoint is whole, 1 if one is broken or there is
    none, 2 if there is no such directory.
    """
    argv = [sys.executable, *safe_path(), "-m", INVENTORY, directory, *(["--verify"] if verify else [])]
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.decode(errors="replace").strip() or f"{INVENTORY} failed", exit_code=2)
    inventory: dict[str, Any] = decode_json(done.stdout, dict)
    if as_json:
        click.echo(indent_json(inventory))
    else:
        show_inventory(inventory, verify)
    if not inventory["checkpoints"] and not inventory["error"]:
        raise UserError(f"there are no checkpoints in {inventory['directory']}", exit_code=1)
    broken = inventory["error"] or any(item["error"] for item in inventory["checkpoints"])
    sys.exit(1 if broken else 0)


def show_inventory(inventory: dict[str, Any], verify: bool) -> None:
    console = make_console()
    if inventory["error"]:
        console.print(f"[red]{as_markup(inventory['error'])}[/red]")
    if inventory["checkpoints"]:
        names = ("step", "checkpoint", "size", "age", "reason", "verified" if verify else "looks")
        table = make_table(names, right=("step", "size", "age"))
        for item in inventory["checkpoints"]:
            table.add_row(*(as_markup(cell) for cell in _row(item, verify)))
        console.print(table)
    for path in inventory["rejected"]:
        console.print(f"moved aside, since it cannot be restored: {as_markup(path)}")
    for path in inventory["leftovers"]:
        console.print(f"belongs to no checkpoint: {as_markup(path)}")


def _row(item: dict[str, Any], verify: bool) -> tuple[str, ...]:
    name = item["path"].rpartition("/")[2] + ("  (latest)" if item["latest"] else "")
    verdict = item["error"] or ("yes" if verify else "whole")
    if not item["listed"] and not item["error"]:
        verdict += ", not listed"
    now_s = SystemClock().wall()
    age = show_duration(max(0.0, now_s - item["time"])) if item["time"] is not None else "-"
    step = str(item["step"]) if item["step"] >= 0 else "-"
    return step, name, show_size(item["bytes"]), age, item["reason"] or "-", verdict
