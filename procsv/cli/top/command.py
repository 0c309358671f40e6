"""`procsv top [DIR]`: show a run on one screen, redrawn every second, until q is pressed.

Called by main.py. If its output is not a terminal, it prints one screen and ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from procsv.base.system.system_clock import SystemClock
from procsv.cli.directory import directory_argument

if TYPE_CHECKING:
    from rich.console import Console

    from procsv.cli.top.readings import Readings

EVERY_S = 1.0
HINT = "q quits"


@click.command("top")
@directory_argument()
@click.option(
    "--scalar",
    metavar="TAG",
    show_default="one that is named like a loss",
    help="Scalar of the event files to draw beside the steps.",
)
def command(directory: str, scalar: str | None) -> None:
    """Show the run in DIR on one screen, redrawn every second: processes, steps, loss, checkpoints, events. q quits."""
    from rich.console import Console

    from procsv.cli.top.readings import Readings
    from procsv.cli.top.screen import draw_screen

    console, readings = Console(highlight=False), Readings(directory, scalar, SystemClock())
    if not console.is_terminal:
        console.print(draw_screen(readings.take_view(), console.width, None))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(readings, console)


def _watch(readings: Readings, console: Console) -> None:
    from rich.live import Live

    from procsv.cli.top.screen import draw_screen

    with _key_presses() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            width, height = console.size
            live.update(draw_screen(readings.take_view(), width, height, HINT), refresh=True)
            if select.select(keys, [], [], EVERY_S)[0]:
                pressed = os.read(keys[0], 100)
                if not pressed or b"q" in pressed.lower():
                    return


@contextlib.contextmanager
def _key_presses() -> Iterator[list[int]]:
    """Yield the list of descriptors on which single key presses arrive.

    The list is empty if standard input is not a terminal.
    """
    fd = sys.stdin.fileno()
    if not os.isatty(fd):
        yield []
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield [fd]
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
