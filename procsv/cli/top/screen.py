"""Draw the screen of `procsv top` from a view, in pure code.

Used by command.py. The screen fits its width and height: wide lines are cut, and events fill the
remaining lines.
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
from procsv.report.event_files import Scalar

BARS, MARK = "▁▂▃▄▅▆▇█", "│"  # eight levels of a curve; MARK is a restart of the program
EVENTS_MIN = 3
NAME_CHARS = 9
CURVE_FROM, CURVE_COLUMNS_MIN = 34, 8  # the first column and the least width of a curve on the line of its figure
SCALE_CHARS, SCALE_BESIDE_CHARS = 8, 20  # width of a chart's scale, and of the scale of a one-row curve
FIGURES = 12  # lines of the screen that are not tables, charts or events
CHART_ROWS_MIN, CHART_ROWS_MAX, CHART_FRAME, CHART_GAP = 5, 12, 3, 2  # FRAME: the lines around a chart's rows

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
_LEFT_OUT = frozenset({"args", "logdir", "run", "path", "from"})


def draw_screen(view: View, width: int, height: int | None, hint: str = "") -> RenderableType:
    """Draw the whole screen. `height` None: use as many lines as needed."""
    processes, tasks = view.status["processes"], view.status.get("tasks")
    tables: list[RenderableType] = []
    used = 0
    if tasks:
        tables += [task_table(tasks, lambda cell: _line(cell, width)), Text()]
        used += len(tasks) + 2
    if processes:
        tables += [_processes(processes), Text()]
        used += len(processes) + 2
    rows = _chart_rows(height, used) if view.rates or view.losses else 0
    head = [*_title(view, width), *_figures(view, width, has_curves=not rows), Text()]
    charts = [*_charts(view, width, rows), Text()] if rows else []
    used += len(head) + len(charts) + 2
    left = max(EVENTS_MIN, height - used) if height is not None else len(view.lines)
    shown = view.lines[-left:] if left else []
    body = [*head, *charts, *tables, Text("events", style="dim"), *(_event(line, width) for line in shown)]
    if hint:
        body += [Text()] * max(0, left - len(shown)) + [Text(hint, style="dim", justify="right")]
    return Group(*body)


# -- curves ----------------------------------------------------------------------------------------------------
def sparkline(values: Sequence[float | None], rows: int, low: float, high: float) -> list[str]:
    """Draw each value as a column between `low` and `high`, `rows` rows high; None draws a mark.

    The topmost row comes first.
    """
    levels = [None if one is None else _level(one, rows * len(BARS), low, high) for one in values]
    return ["".join(_cell(one, row) for one in levels) for row in reversed(range(rows))]


def _level(value: float, levels: int, low: float, high: float) -> int:
    """Return how many eighths of a row to fill, at least one."""
    if high <= low:
        return max(1, levels // 2) if high else 1
    return min(levels, 1 + int((value - low) / (high - low) * levels))


def _cell(level: int | None, row: int) -> str:
    if level is None:
        return MARK
    filled = level - row * len(BARS)
    return " " if filled <= 0 else BARS[min(filled, len(BARS)) - 1]


class _Curve:
    """A curve drawn in `width` columns, with its scale.

    Each column is the mean of the same number of points. A mark separates attempts.
    """

    def __init__(
        self, points: Sequence[Scalar], starts_s: Sequence[float], width: int, low: float | None = None
    ) -> None:
        pieces = _split(points, starts_s)
        while (size := _column_size(pieces, width)) is None:
            pieces = pieces[1:]  # there are more marks than columns: drop the oldest attempt
        self.points = [one for piece in pieces for one in piece]
        self.columns: list[float | None] = []
        for piece in pieces:
            self.columns += [None] if self.columns else []
            groups = [piece[at : at + size] for at in range(0, len(piece), size)]
            self.columns += [sum(one.value for one in group) / len(group) for group in groups]
        values = [one for one in self.columns if one is not None]
        self.low, self.high = min(values, default=0.0) if low is None else low, max(values, default=0.0)

    def draw(self, rows: int) -> list[Text]:
        lines = [Text(one, style="cyan") for one in sparkline(self.columns, rows, self.low, self.high)]
        for line in lines:
            line.highlight_regex(MARK, "red")
        return lines


def _split(points: Sequence[Scalar], starts_s: Sequence[float]) -> list[list[Scalar]]:
    """Split the points into one list per attempt."""
    pieces = list[list[Scalar]]()
    for point in points:
        if not pieces or any(pieces[-1][-1].time_s < one <= point.time_s for one in starts_s):
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _column_size(pieces: Sequence[Sequence[Scalar]], width: int) -> int | None:
    """Return how many points a column must average so that all fit; None if they cannot fit."""
    longest = max(map(len, pieces), default=1)
    sizes = (size for size in range(1, longest + 1) if sum(1 - len(one) // -size for one in pieces) - 1 <= width)
    return next(sizes, None)


def _chart_rows(height: int | None, used: int) -> int:
    """Return the height of a chart in rows; 0 if the screen has no room for charts.

    Without charts, each curve takes one row, beside its figure.
    """
    rows = 0 if height is None else (height - used - FIGURES) // 2 - CHART_FRAME
    return min(rows, CHART_ROWS_MAX) if rows >= CHART_ROWS_MIN else 0


def _charts(view: View, width: int, rows: int) -> list[Text]:
    """Draw steps per second and the loss side by side."""
    shown = [one for one in (("steps/s", view.rates, 0.0), (view.loss_name, view.losses, None)) if one[1]]
    each = (width - CHART_GAP) // 2 if len(shown) > 1 else width
    charts = [_chart(name, points, view.starts_s, each, rows, low) for name, points, low in shown]
    for line, beside in zip(*charts, strict=True) if len(charts) > 1 else ():
        line.pad_right(each + CHART_GAP - line.cell_len)
        line.append_text(beside)
    return charts[0]


def _chart(
    name: str, points: Sequence[Scalar], starts_s: Sequence[float], width: int, rows: int, low: float | None = None
) -> list[Text]:
    """Draw a caption, the curve with its scale on the left, and the steps below it."""
    curve = _Curve(points, starts_s, width - SCALE_CHARS - 1, low)
    scale = [""] * rows
    if curve.points:
        scale[0], scale[-1] = f"{curve.high:.4g}", f"{curve.low:.4g}"
    drawn = zip(scale, curve.draw(rows), strict=True)
    lines = [Text(printable(name), style="dim")]
    lines += [Text.assemble((f"{value:>{SCALE_CHARS}} ", "dim"), row) for value, row in drawn]
    known = [one.step for one in curve.points if one.step >= 0]
    span = f"step {known[0]} to {known[-1]}" if known else ""
    lines.append(Text(" " * (SCALE_CHARS + 1) + span, style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _title(view: View, width: int) -> list[Text]:
    status = view.status
    state = f"importing {status['importing']}" if status.get("importing") else status["state"]
    if not status["running"]:
        host = status.get("elsewhere")
        state = f"{status['state']} on {host}" if host else f"{status['state']} (not running)"
    time = datetime.datetime.fromtimestamp(view.now_s).astimezone().strftime("%H:%M:%S")
    name = Text(printable(str(status["logdir"])), style="bold")
    right = Text.assemble((printable(state), _state_style(status)), f"  {time}")
    space = width - right.cell_len - 2
    name.truncate(space, overflow="ellipsis")
    name.pad_right(space - name.cell_len + 2)
    target = " ".join((status["target"], *status["args"]))
    return [name + right, _line(target, width, "dim")]


def _state_style(status: dict[str, Any]) -> str:
    """Choose the colour of the state. Red is for trouble only: a run that finished or was stopped
    is not a failure.
    """
    if status["running"] or status["state"] == "done":
        return "green"
    return "" if status["state"] == "stopped" else "red"


def _figures(view: View, width: int, *, has_curves: bool) -> list[Text]:
    status = view.status
    known = view.rates[-1].value if view.rates else 1.0 / status["step_s"] if status["step_s"] else None
    rate = f"  {known:.4g} steps/s" if known is not None and status["running"] else ""
    total = f" of {show_step(status['steps_total'])}" if status.get("steps_total", 0) > 0 else ""
    loss = "-"
    if view.losses:
        at = f"  at step {view.losses[-1].step}" if view.losses[-1].step >= 0 else ""
        loss = f"{view.losses[-1].value:.4g}{at}"
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
        _curve("step", f"{show_step(status['step'])}{total}{rate}", view.rates if has_curves else [], view, width, 0.0),
        *fit,
        _curve(view.loss_name, loss, view.losses if has_curves else [], view, width),
        _named("saved", kept, width),
        _named("snapshots", taken, width),
        _named("run", run, width),
    ]
    troubles = [
        f"{name.replace('_', ' ')}: {status[name]}" for name in ("save_error", "ground_error") if status.get(name)
    ]
    return lines + [_line(trouble, width, "red") for trouble in troubles]


def _curve(name: str, value: str, points: Sequence[Scalar], view: View, width: int, low: float | None = None) -> Text:
    """Draw a line with a figure, its curve and the scale of the curve."""
    text = _named(name, value, width)
    text.pad_right(max(2, CURVE_FROM - text.cell_len))
    room = width - text.cell_len - SCALE_BESIDE_CHARS
    if points and room >= CURVE_COLUMNS_MIN:
        curve = _Curve(points, view.starts_s, room, low)
        text.append_text(curve.draw(1)[0])
        text.append(f"  {curve.low:.3g} to {curve.high:.3g}", style="dim")
    return text


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
        if name not in _LEFT_OUT and value not in (None, "") and (name, value) != ("step", NO_STEP)
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
