"""Render the account of a run as one HTML page.

Used by `procsv report --html`. The page loads nothing, so it suits a browser, a phone, paper and
e-mail.

This module renders a story, which reading.py has read, and also reads curves and crash reports
itself. It escapes every word that comes from a program, a path or a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Literal

from procsv.base.journal.entries import Entry
from procsv.base.outcome import NO_STEP
from procsv.base.units import show_count, show_duration, show_size
from procsv.report.account import KINDS, Account, Incarnation
from procsv.report.curves import Curve, CurveMark, find_marks, read_curves, read_memory
from procsv.report.drawing import draw_curve, draw_steps, draw_timeline
from procsv.report.reading import Story, read_report
from procsv.report.text import (
    MEANING,
    clock_time,
    done_without,
    incarnation_row,
    lost_time,
    place_in_fit,
    task_columns,
    task_rows,
)

ROWS_MAX = 500  # a table shows only its last rows; the journal has all of them
LEGEND = {"crash": "crash or hang", "preempted": "preemption or planned restart", "checkpoint": "checkpoint"}


def make_page(story: Story, *, again_s: int = 0) -> str:
    """Render the page. `again_s`: after how many seconds the page of an active run reloads itself;
    0: never.
    """
    account, marks = story.account, find_marks(story.account)
    refresh = f'\n<meta http-equiv="refresh" content="{again_s}">' if again_s and story.is_running else ""
    title = " ".join((story.target, *story.args)) or story.logdir
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}
<title>{escape(title)} - procsv</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="sub">{escape(story.logdir)}</p>
</header>
<p class="lead{" bad" if account.gave_up else ""}">{escape(_sentence(_lead(account)))}</p>
{_figures(account)}
{f"<p>{escape(_sentence(place_in_fit(story)))}</p>" if story.fit is not None else ""}
{"".join(f"<p>{escape(_sentence(sentence))}</p>" for sentence in done_without(account))}
{_curves(story, marks)}
<section>
<h2>What became of the time</h2>
{draw_timeline(account)}
{_ledger(account)}
</section>
<section>
<h2>Steps</h2>
{draw_steps(account)}
</section>
{_tasks(story.tasks)}
<section>
<h2>{f"Starts of {next(iter(story.tasks))}" if story.tasks else "Starts of the program"}</h2>
{_incarnations(account.incarnations, story)}
</section>
<section>
<h2>Events</h2>
{_events(account, story.logdir)}
</section>
{_surroundings(story)}
<footer>{escape(clock_time(account.start_s))} to {escape(clock_time(account.end_s))}; made by procsv from the journal and the event files</footer>
</body>
</html>
"""
    return page.encode(errors="backslashreplace").decode()  # names may have bytes that are not UTF-8


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _lead(account: Account) -> str:
    """Say in one sentence what happened, and why if the run failed."""
    at = f" at step {account.last_step:,}" if account.last_step > NO_STEP else ""
    crashes = account.failures
    through = f" through {show_count(crashes, 'failure')}" if crashes else " without a failure"
    match account.outcome:
        case "completed":
            return f"training is complete{at}{through}"
        case "running":
            return f"training goes on{at}{through} so far"
        case "stopped":
            return f"training was stopped{at}; the same command resumes it"
        case "gave up":
            return f"training was given up{at}: {account.gave_up}"
        case _:
            return f"training was interrupted{at}, as its watchdog was killed; the same command resumes it"


def _curves(story: Story, marks: Sequence[CurveMark]) -> str:
    """Draw the curves. The page shows the loss at once, and the other scalars after a click."""
    curves = read_curves(Path(story.logdir))
    drawn = [_curve(curve, marks, ("time", "step"), _number, is_open=not n) for n, curve in enumerate(curves)]
    memory = read_memory(Path(story.home))
    if memory is not None:
        drawn.append(_curve(memory, marks, ("time",), show_size, is_open=False))
    if not drawn:
        return ""
    legend = "".join(f'<span><i class="key {kind}"></i>{name}</span>' for kind, name in LEGEND.items())
    return f'<section>\n<h2>Curves</h2>\n<p class="legend">{legend}</p>\n{"".join(drawn)}\n</section>'


def _curve(
    curve: Curve,
    marks: Sequence[CurveMark],
    ways: Sequence[Literal["time", "step"]],
    show: Callable[[float], str],
    *,
    is_open: bool,
) -> str:
    figures = "".join(draw_curve(curve, marks, over, show) for over in ways)
    last = show(curve.points[-1].value)
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(curve.name)} <b>{escape(last)}</b></summary>"
        f'<div class="curves">{figures}</div></details>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _surroundings(story: Story) -> str:
    """Show the machine, versions and options of the newest launch."""
    if story.started is None or not story.started.machine:
        return ""
    rows = [("machine", story.started.machine), *story.started.versions.items()]
    rows += [(f"--{name.replace('_', '-')}", value) for name, value in story.started.options.items()]
    cells = [(escape(name), escape(value)) for name, value in rows]
    return f"<section>\n<h2>The newest launch</h2>\n{_table(('what', 'value'), cells, 'launch')}\n</section>"


def _figures(account: Account) -> str:
    recoveries = account.recoveries_s
    figures = [
        (f"{account.goodput:.1%}", "goodput"),
        (show_duration(account.wall_s), account.outcome or "so far"),
        (str(account.failures), "failures"),
        (str(account.lost_steps), "steps done again"),
        (show_duration(median(recoveries)) if recoveries else "-", "median recovery"),
    ]
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures)
    return f'<div class="figures">{cells}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Render a table from cells in HTML. Each cell carries its column's name, shown on narrow
    screens.
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = []
    for row in rows:
        cells = "".join(
            f'<td data-name="{escape(name)}"><span>{cell}</span></td>' for name, cell in zip(head, row, strict=True)
        )
        body.append(f"<tr>{cells}</tr>")
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def _ledger(account: Account) -> str:
    rows = []
    for kind in KINDS:
        seconds = account.totals[kind]
        share = seconds / account.wall_s if account.wall_s > 0 else 0.0
        name = f'<i class="key {kind}"></i>{kind}'
        rows.append((name, escape(show_duration(seconds)), f"{share:.1%}", escape(MEANING[kind])))
    return _table(("time", "spent", "share", "what it is"), rows, "ledger")


def _tasks(tasks: Mapping[str, Account]) -> str:
    if not tasks:
        return ""
    rows = [tuple(map(escape, row)) for row in task_rows(tasks)]
    return f"<section>\n<h2>Tasks</h2>\n<p>{escape(_sentence(lost_time(tasks)))}</p>\n{_table(task_columns(tasks), rows)}\n</section>"


def _incarnations(incarnations: Sequence[Incarnation], story: Story) -> str:
    rows = [_incarnation(one, story) for one in incarnations[-ROWS_MAX:]]
    left_out = _left_out(len(incarnations))
    return left_out + _table(("start", "at", "back after", "from", "to step", "ended", "steps lost"), rows)


def _incarnation(one: Incarnation, story: Story) -> tuple[str, ...]:
    *cells, ended, lost = map(escape, incarnation_row(one))
    mark = '&nbsp;<i class="crash"></i>' if one.is_failure or one.ended_with_watchdog else ""
    report = read_report(story, one.number) if one.cause not in ("", "completed", "stopped") else ""
    if not report:
        return *cells, ended + mark, lost
    return *cells, f"<details><summary>{ended}{mark}</summary><pre>{escape(report)}</pre></details>", lost


def _left_out(count: int) -> str:
    return f"<p>The last {ROWS_MAX} of {count}.</p>" if count > ROWS_MAX else ""


def _events(account: Account, logdir: str) -> str:
    rows = [
        (
            escape(clock_time(line.time)),
            escape(line.entry.event.replace("_", " ")),
            escape(f"{line.role} {line.incarnation}"),
            escape(_facts(line.entry, logdir)),
        )
        for line in account.remarks[-ROWS_MAX:]
    ]
    return _left_out(len(account.remarks)) + _table(("time", "event", "who", "what"), rows, "events")


def _facts(entry: Entry, logdir: str) -> str:
    """Return the event's own fields, with paths relative to the logdir."""
    fields, parts = entry.fields(), []
    for name in (
        "run",
        "pid",
        "args",
        "logdir",
        "target",
        "first_incarnation",
        "options",
        "versions",
        "trainer",
        "seen_until",
        "asked_at",
    ):
        fields.pop(name, None)
    for name, value in fields.items():
        if value is None or value == "" or (name == "step" and value == NO_STEP):
            continue
        if name == "bytes":
            value = show_size(value)
        elif name in ("seconds", "delay", "grace"):
            value = show_duration(value)
        elif name == "goodput":
            value = f"{value:.1%}"
        elif isinstance(value, str):
            value = value.removeprefix(f"{logdir}/")
        parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9dce1;--kept:#2f9e5b;--redone:#e5a50a;--starting:#4a86d4;--down:#d64545;
--stalled:#9b59b6;--stopped:#b9bec6}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8eaed;--dim:#9aa0a8;--line:#33383f;--stopped:#565c66}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:70rem;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:2rem 0 .6rem}
.sub,footer{color:var(--dim);overflow-wrap:anywhere;margin:.2rem 0}footer{margin-top:2rem;font-size:.85rem}
.figures{display:flex;flex-wrap:wrap;gap:.6rem 2.2rem;margin:1.2rem 0}
.figures div{display:flex;flex-direction:column}.figures b{font-size:1.6rem;line-height:1.2}.figures span{color:var(--dim);font-size:.85rem}
.chart{position:relative;margin:.4rem 0 .2rem}.chart svg{display:block;width:100%}
.axis{display:flex;justify-content:space-between;color:var(--dim);font-size:.8rem;margin-bottom:.8rem}
rect.kept,.key.kept{fill:var(--kept);background:var(--kept)}rect.redone,.key.redone{fill:var(--redone);background:var(--redone)}
rect.starting,.key.starting{fill:var(--starting);background:var(--starting)}rect.down,.key.down{fill:var(--down);background:var(--down)}
rect.stalled,.key.stalled{fill:var(--stalled);background:var(--stalled)}rect.stopped,.key.stopped{fill:var(--stopped);background:var(--stopped)}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
.marks{position:relative;height:14px}.marks i,.crash{display:inline-block;width:0;height:0;border:6px solid transparent;
border-top:9px solid var(--down);border-bottom:0}.marks i{position:absolute;top:4px;margin-left:-6px}
.lead{font-size:1.15rem;font-weight:500;margin:1rem 0;overflow-wrap:anywhere}.lead.bad{border-left:4px solid var(--down);padding-left:.7rem}
details{margin:.3rem 0}summary{cursor:pointer}summary b{font-weight:500;color:var(--dim);margin-left:.4em}
pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.8rem;border-left:2px solid var(--line);padding-left:.7rem}
.curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:.4rem 2rem}
figure{margin:0;min-width:0}figcaption{color:var(--dim);font-size:.8rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;color:var(--dim);font-size:.85rem}
.key.crash{border:0;background:var(--down);width:.8em;height:.8em}.key.preempted{background:var(--starting)}.key.checkpoint{background:var(--dim)}
.curve{fill:none;stroke:var(--kept);stroke-width:1.6;vector-effect:non-scaling-stroke}
.mark{stroke-width:2;vector-effect:non-scaling-stroke}.mark.crash{stroke:var(--down)}.mark.preempted{stroke:var(--starting)}.mark.checkpoint{stroke:var(--dim)}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.trained{fill:none;stroke:var(--kept);stroke-width:2;vector-effect:non-scaling-stroke}
.lost{fill:none;stroke:var(--redone);stroke-width:2;stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
.scale{position:absolute;left:0;color:var(--dim);font-size:.8rem;background:var(--bg);padding-right:.3em;transform:translateY(-50%)}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;font-weight:500;color:var(--dim)}th,td{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:anywhere}td:not([data-name=what],[data-name=from],[data-name=ended],[data-name="what it is"]){white-space:nowrap}
@media(max-width:42rem){body{padding:.8rem}.ledger th:last-child,.ledger td:last-child{display:none}
table:not(.ledger) :is(thead){display:none}table:not(.ledger) tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}
table:not(.ledger) td{display:flex;gap:.8rem;border:0;padding:.05rem 0}td:has(span:empty){display:none!important}
table:not(.ledger) td::before{content:attr(data-name);color:var(--dim);flex:0 0 6.5rem}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;--stopped:#b9bec6;font-size:11px}body{font-size:1rem;max-width:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}tr,.chart{break-inside:avoid}h2{break-after:avoid}}
"""
