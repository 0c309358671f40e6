"""`procsv report DIR`: account for every second of a run.

Called by main.py. It reads the run's files and changes none of them, so the run may be active.
"""

from __future__ import annotations

import threading
from pathlib import Path

import click

from procsv.base.encoding import indent_json
from procsv.base.errors import UserError
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.output import make_console
from procsv.base.system.system_clock import SystemClock
from procsv.cli.directory import directory_argument

WATCH_S = 5


@click.command("report")
@directory_argument()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write one page that loads nothing from elsewhere; - is standard output.",
)
@click.option("--watch", is_flag=True, help="Rewrite the page every few seconds until the run ends.")
def command(directory: str, as_json: bool, html: str | None, watch: bool) -> None:
    """Account for every second of the run in DIR: training kept and redone, starting, down, stalled and stopped; and
    every start, crash, recovery and checkpoint."""
    from procsv.report.page import make_page
    from procsv.report.reading import read_story
    from procsv.report.report_object import make_object
    from procsv.report.text import show_report

    if (watch or html == "-") and as_json:
        raise click.UsageError("--json goes to standard output by itself")
    if watch and html in (None, "-"):
        raise click.UsageError("--watch rewrites a page: name it with --html FILE")
    story = read_story(directory, SystemClock())
    if html == "-":
        click.echo(make_page(story), nl=False)
        return
    if html is not None:
        _write_page(Path(html), make_page(story, again_s=WATCH_S if watch else 0).encode())
    if as_json:
        click.echo(indent_json(make_object(story)))
    elif html is not None:
        click.echo(f"wrote {html}{f', and writes it every {WATCH_S} s' if watch and story.is_running else ''}")
        pause = threading.Event()
        while watch and story.is_running:
            pause.wait(WATCH_S)
            story = read_story(directory, SystemClock())
            _write_page(Path(html), make_page(story, again_s=WATCH_S).encode())
    else:
        show_report(story, make_console())


def _write_page(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data, durable=False)
    except OSError as error:
        raise UserError(f"--html {path}: {error.strerror}") from error
