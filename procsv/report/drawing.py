"""Draw the page's figures: the timeline, the global step over time, and curves over time or step.

Used by page.py. Pure. The drawings are SVG that stretches to the available width. The words are
HTML beside them, so that they stay readable on a phone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Literal, NamedTuple

from procsv.base.units import show_duration
from procsv.report.account import Account, Incarnation, Span
from procsv.report.curves import Curve, CurveMark, describe_end
from procsv.report.text import clock_time

WIDTH = 1000.0  # in drawing units, independent of the screen
BAR_HEIGHT, STEPS_HEIGHT, CURVE_HEIGHT = 46, 180, 160
LOG_FROM = 50.0  # ratio of a curve's largest to least value from which its scale is logarithmic
WIDTH_MIN = 0.8  # least width of a drawn span: 0.1 s of downtime must be visible in a run of a week
NARROW = 0.15  # narrower spans of training or starting are not drawn


def draw_timeline(account: Account) -> str:
    """Draw one bar with every second in the colour of its kind, and a mark over each crash."""
    if account.wall_s <= 0:
        return "<p>Nothing has happened yet.</p>"
    spans = sorted(account.spans, key=lambda span: span.kind not in ("kept", "stopped"))  # the short kinds on top
    bars = "".join(_bar(account, span) for span in spans)
    marks = "".join(
        f'<i style="left:{100 * _share(account, one.end_s):.3f}%" title="{escape(describe_end(one), quote=True)}"></i>'
        for one in account.incarnations
        if (one.is_failure or one.ended_with_watchdog) and one.end_s is not None
    )
    return (
        f'<div class="marks">{marks}</div><div class="chart"><svg viewBox="0 0 {WIDTH:g} {BAR_HEIGHT}" height="{BAR_HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="timeline">{bars}</svg></div>{_axis(account)}'
    )


def _share(account: Account, time_s: float) -> float:
    return (time_s - account.start_s) / account.wall_s


def _bar(account: Account, span: Span) -> str:
    left = WIDTH * _share(account, span.start_s)
    width = WIDTH * span.seconds / account.wall_s
    if width < NARROW and span.kind in ("kept", "starting"):
        return ""
    title = f"{span.kind} {show_duration(span.seconds)}, from {clock_time(span.start_s)}"
    return (
        f'<rect class="{span.kind}" x="{left:.2f}" y="0" width="{max(width, WIDTH_MIN):.2f}" height="{BAR_HEIGHT}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _axis(account: Account) -> str:
    half_s = account.start_s + account.wall_s / 2
    times = (account.start_s, half_s, account.end_s)
    return f'<div class="axis">{"".join(f"<span>{escape(clock_time(time_s))}</span>" for time_s in times)}</div>'


def draw_steps(account: Account) -> str:
    """Draw the global step over time: a line per attempt, dashed where its steps were lost."""
    lines = [one for one in account.incarnations if one.ready_s is not None and one.last_step >= 0]
    top = max((one.last_step for one in lines), default=0)
    if not lines or top <= 0 or account.wall_s <= 0:
        return "<p>No step has been made.</p>"
    drawn = "".join(_line(account, one, top) for one in lines)
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{_height(top * part, top):.1f}" y2="{_height(top * part, top):.1f}"/>'
        for part in (0.0, 0.5, 1.0)
    )
    names = "".join(
        f'<span class="scale" style="top:{100 * _height(top * part, top) / STEPS_HEIGHT:.1f}%">{round(top * part):,}</span>'
        for part in (0.5, 1.0)
    )
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH:g} {STEPS_HEIGHT}" height="{STEPS_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="global step over time">{grid}{drawn}</svg>{names}</div>{_axis(account)}'
    )


def _height(step: float, top: int) -> float:
    return STEPS_HEIGHT - 4 - (STEPS_HEIGHT - 16) * step / top


def _line(account: Account, one: Incarnation, top: int) -> str:
    assert one.ready_s is not None
    end_s = one.end_s if one.end_s is not None else account.end_s
    first, last, kept = max(one.restored_step, 0), one.last_step, one.last_step - one.lost_steps
    border_s = one.ready_s + (end_s - one.ready_s) * ((kept - first) / (last - first) if kept > first else 0.0)
    points = [(one.ready_s, first), (border_s, max(kept, first)), (end_s, last)]
    (x0, y0), (x1, y1), (x2, y2) = ((WIDTH * _share(account, time_s), _height(step, top)) for time_s, step in points)
    trained = f'<path class="trained" d="M{x0:.2f} {y0:.1f}L{x1:.2f} {y1:.1f}"/>'
    lost = f'<path class="lost" d="M{x1:.2f} {y1:.1f}L{x2:.2f} {y2:.1f}"/>' if one.lost_steps else ""
    return trained + lost


class _Scale(NamedTuple):
    """Maps values to heights."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        low, high = min(values), max(values)
        is_log = low > 0 and high / low >= LOG_FROM
        return cls(low, high if high > low else low + (abs(low) or 1.0), is_log)

    def part(self, value: float) -> float:
        """Return the relative height of `value`: 0 at the bottom, 1 at the top."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, part: float) -> float:
        return self.low * (self.high / self.low) ** part if self.is_log else self.low + (self.high - self.low) * part

    def y(self, value: float) -> float:
        return CURVE_HEIGHT - 6 - (CURVE_HEIGHT - 16) * self.part(value)


def draw_curve(
    curve: Curve, marks: Sequence[CurveMark], over: Literal["time", "step"], show: Callable[[float], str]
) -> str:
    """Draw one curve over time or step, with a line for each mark. `show` formats a value."""
    places = [point.time_s if over == "time" else point.step for point in curve.points]
    first, last = min(places), max(places)
    width = last - first
    if width <= 0:
        return f"<p>One value so far: {escape(show(curve.points[-1].value))}.</p>"
    scale = _Scale.of([point.value for point in curve.points])
    x = [WIDTH * (place - first) / width for place in places]
    path = "L".join(f"{left:.1f} {scale.y(point.value):.1f}" for left, point in zip(x, curve.points, strict=True))
    lines = "".join(
        f'<line class="mark {mark.kind}" x1="{left:.1f}" x2="{left:.1f}" y1="{CURVE_HEIGHT - 8 if mark.kind == "checkpoint" else 0}" '
        f'y2="{CURVE_HEIGHT}"><title>{escape(f"{mark.text} ({clock_time(mark.time_s)})")}</title></line>'
        for mark in marks
        if (place := _place(mark, curve, over)) is not None and 0 <= (left := WIDTH * (place - first) / width) <= WIDTH
    )
    names = "".join(
        f'<span class="scale" style="top:{100 * scale.y(scale.at(part)) / CURVE_HEIGHT:.1f}%">{escape(show(scale.at(part)))}</span>'
        for part in (0.0, 0.5, 1.0)
    )
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{scale.y(scale.at(part)):.1f}" y2="{scale.y(scale.at(part)):.1f}"/>'
        for part in (0.0, 0.5, 1.0)
    )
    what = f"{curve.name} over {over}: from {show(curve.points[0].value)} to {show(curve.points[-1].value)}"
    halves = (first, first + width / 2, last)
    axis = [clock_time(place) if over == "time" else f"step {round(place):,}" for place in halves]
    return (
        f'<figure><figcaption>over {over}{", logarithmic" if scale.is_log else ""}</figcaption><div class="chart">'
        f'<svg viewBox="0 0 {WIDTH:g} {CURVE_HEIGHT}" height="{CURVE_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(what, quote=True)}">{grid}{lines}<path class="curve" d="M{path}"/></svg>{names}</div>'
        f'<div class="axis">{"".join(f"<span>{escape(one)}</span>" for one in axis)}</div></figure>'
    )


def _place(mark: CurveMark, curve: Curve, over: Literal["time", "step"]) -> float | None:
    """Return where a mark lies on the axis; None if it is before the curve's first point.

    The curve may count epochs while the run counts batches. So a mark over the step lies at the
    last point of the curve before the time of the mark.
    """
    before = bisect.bisect_right([point.time_s for point in curve.points], mark.time_s)
    if over == "time":
        return mark.time_s
    return curve.points[before - 1].step if before else None
