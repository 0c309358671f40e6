"""The screen of `procsv top`, drawn from a view.  Pure.

Used by command.py.  Fits into its width and height: what is too wide is cut, and the events take the lines that are left.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from procsv.base.journal.entries import Exited
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP
from procsv.base.terminal import make_table, printable
from procsv.base.units import show_duration
from procsv.cli.status import process_row, show_fit, show_step, task_table
from procsv.cli.top.readings import View

BARS = "▁▂▃▄▅▆▇█"
EVENTS_MIN = 3
NAME_CHARS = 9
CURVE_FROM = 34  # the column

_BAD = frozenset(
    {
        "hang_detected",
        "gave_up",
        "task_given_up",
        "checkpoint_failed",
        "checkpoint_rejected",
        "snapshot_failed",
    }
)
_GOOD = frozenset({"ready", "recovered", "run_completed", "ground_restored", "snapshots_resumed"})
_LONG = frozenset({"args", "logdir", "run", "path", "from"})


def draw_screen(view: View, width: int, height: int | None, hint: str = "") -> RenderableType:
    """`height` None: as many lines as it takes."""
    head = [*_title(view, width), *_figures(view, width), Text()]
    processes, tasks = view.status["processes"], view.status.get("tasks")
    body: list[RenderableType] = [*head]
    used = len(head) + 2
    if tasks:
        body += [task_table(tasks, lambda cell: _line(cell, width)), Text()]
        used += len(tasks) + 2
    if processes:
        body += [_processes(processes), Text()]
        used += len(processes) + 2
    left = max(EVENTS_MIN, height - used) if height is not None else len(view.lines)
    shown = view.lines[-left:] if left else []
    body += [Text("events", style="dim"), *(_event(line, width) for line in shown)]
    if hint:
        body += [Text()] * max(0, left - len(shown)) + [Text(hint, style="dim", justify="right")]
    return Group(*body)


def sparkline(values: Sequence[float], width: int, low: float | None = None) -> str:
    """One sign for each of the last values, from `low`, or else the lowest of them, to the highest."""
    shown = values[-width:] if width > 0 else ()
    low, high = min(shown, default=0.0) if low is None else low, max(shown, default=0.0)
    if high <= low:
        return (BARS[3] if high else BARS[0]) * len(shown)
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / (high - low) * len(BARS)))] for value in shown)


def _title(view: View, width: int) -> list[Text]:
    status = view.status
    state = status["state"] if status["running"] else f"{status['state']} (not running)"
    time = datetime.datetime.fromtimestamp(view.now_s).astimezone().strftime("%H:%M:%S")
    name = Text(printable(str(status["logdir"])), style="bold")
    right = Text.assemble((printable(state), _state_style(status)), f"  {time}")
    space = width - right.cell_len - 2
    name.truncate(space, overflow="ellipsis")
    name.pad_right(space - name.cell_len + 2)
    target = " ".join((status["target"], *status["args"]))
    return [name + right, _line(target, width, "dim")]


def _state_style(status: dict[str, Any]) -> str:
    """Red only where something went wrong: a run that has ended well, or was stopped, is no failure."""
    if status["running"] or status["state"] == "done":
        return "green"
    return "" if status["state"] == "stopped" else "red"


def _figures(view: View, width: int) -> list[Text]:
    status = view.status
    known = view.rates[-1] if view.rates else 1.0 / status["step_s"] if status["step_s"] else None
    rate = f"{known:.4g} steps/s" if known is not None and status["running"] else ""
    loss = f"{view.losses[-1]:.4g}" if view.losses else "-"
    kept = f"memory {show_step(status['memory_step'])}   disk {show_step(status['durable_step'])}"
    if view.saved is not None and view.saved[0].step == status["durable_step"]:
        saved, saved_s = view.saved
        kept += f", {show_duration(max(0.0, view.now_s - saved_s))} ago ({saved.reason})"
    if (snapshots := status["snapshots"]) is not None and snapshots["interval"]:
        taken = f"every {show_duration(snapshots['interval'])}, {snapshots['taken']} taken, "
        taken += f"training waits {snapshots['mean_stall_ms']:.1f} ms for one"
    else:
        taken = "-"
    run = f"attempt {status['incarnation']}, restarts {status['restarts']}   goodput {status['goodput']:.1%}"
    if "generation" in status:
        run += f"   generation {status['generation']}"
    fit = [_named("fit", show_fit(status), width)] if status.get("fit") else []
    lines = [
        _curve("step", f"{show_step(status['step'])}  {rate}", view.rates, width, low=0.0),
        *fit,
        _curve(view.loss_name.rpartition("/")[2], loss, view.losses, width),
        _named("saved", kept, width),
        _named("snapshots", taken, width),
        _named("run", run, width),
    ]
    troubles = [
        f"{name.replace('_', ' ')}: {status[name]}" for name in ("save_error", "ground_error") if status.get(name)
    ]
    return lines + [_line(trouble, width, "red") for trouble in troubles]


def _curve(name: str, value: str, values: Sequence[float], width: int, low: float | None = None) -> Text:
    text = _named(name, value, width)
    text.pad_right(max(0, CURVE_FROM - text.cell_len))
    return text + Text(sparkline(values, width - text.cell_len, low), style="cyan")


def _named(name: str, value: str, width: int) -> Text:
    text = Text.assemble((f"{printable(name)[:NAME_CHARS]:{NAME_CHARS}} ", "dim"), printable(value))
    text.truncate(width, overflow="ellipsis")
    return text


def _processes(processes: Sequence[dict[str, Any]]) -> Table:
    table = make_table(("role", "pid", "state", "phase", "up", "memory", "cpu"), right=("pid", "up", "memory", "cpu"))
    for process in processes:
        table.add_row(*(_line(cell, 24) for cell in process_row(process)))
    return table


def _event(line: Line, width: int) -> Text:
    time, entry = datetime.datetime.fromtimestamp(line.time).astimezone().strftime("%H:%M:%S"), line.entry
    who = f"{line.role} {line.incarnation}"
    fields = ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in entry.fields().items()
        if name not in _LONG and value not in (None, "") and (name, value) != ("step", NO_STEP)
    )
    crashed = isinstance(entry, Exited) and entry.cause not in ("completed", "stopped")
    style = "red" if crashed or entry.event in _BAD else "green" if entry.event in _GOOD else ""
    text = Text.assemble((f"{time} ", "dim"), (printable(f"{entry.event:19}"), style))
    text.append(printable(f" {who:13} {fields}".replace("\n", " ")))
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(printable(text).replace("\n", " "), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
