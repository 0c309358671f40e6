"""Define the object that `procsv report --json` prints.

Used by `procsv report`, and by scripts/docs, which generates its schema. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from procsv.base.journal.entries import Seconds, Step
from procsv.base.outcome import FitPlace
from procsv.report.account import Account, Incarnation, SpanKind
from procsv.report.reading import Story

Goodput = Annotated[float, Meta(ge=0, le=1)]


class TaskReport(Struct, frozen=True, kw_only=True):
    """The account of one task of several."""

    seconds: dict[SpanKind, Seconds]
    goodput: Goodput
    failures: int
    lost_steps: int
    hosts: Annotated[tuple[str, ...], Meta(description="of several machines: where it was, one after the other")]
    incarnations: tuple[Incarnation, ...]


class Piece(Struct, frozen=True, kw_only=True):
    """A piece of the run's time."""

    kind: SpanKind
    start: Seconds
    seconds: Seconds
    incarnation: int


class ReportObject(Struct, frozen=True, kw_only=True):
    """The account of a run: every second of it, and what happened."""

    logdir: str
    target: str
    args: tuple[str, ...]
    outcome: str
    started_at: Seconds
    ended_at: Seconds | None
    wall_seconds: Seconds
    seconds: dict[SpanKind, Seconds]
    goodput: Goodput
    launches: int
    failures: int
    lost_steps: int
    step: Step
    fit: FitPlace | None  # the progress of a Keras fit
    durable_step: Step
    damaged_lines: int
    incarnations: tuple[Incarnation, ...]
    tasks: dict[str, TaskReport]  # by name, if there are several
    timeline: tuple[Piece, ...]
    events: Annotated[tuple[dict[str, Any], ...], Meta(description="journal lines, by journal-line.json")]


def make_object(story: Story) -> ReportObject:
    account = story.account
    return ReportObject(
        logdir=story.logdir,
        target=story.target,
        args=story.args,
        outcome=account.outcome,
        started_at=account.start_s,
        ended_at=None if story.is_running else account.end_s,
        wall_seconds=round(account.wall_s, 3),
        seconds=_seconds(account),
        goodput=round(account.goodput, 4),
        launches=account.launches,
        failures=account.failures,
        lost_steps=account.lost_steps,
        step=account.last_step,
        fit=story.fit,
        durable_step=account.durable_step,
        damaged_lines=story.damaged_lines,
        incarnations=tuple(account.incarnations),
        tasks={task: _of_task(one) for task, one in story.tasks.items()},
        timeline=tuple(
            Piece(kind=s.kind, start=round(s.start_s, 3), seconds=round(s.seconds, 3), incarnation=s.incarnation)
            for s in account.spans
        ),
        events=tuple(line.as_dict() for line in account.remarks),
    )


def _of_task(account: Account) -> TaskReport:
    return TaskReport(
        seconds=_seconds(account),
        goodput=round(account.goodput, 4),
        failures=account.failures,
        lost_steps=account.lost_steps,
        hosts=tuple(account.hosts),
        incarnations=tuple(account.incarnations),
    )


def _seconds(account: Account) -> dict[SpanKind, float]:
    return {kind: round(seconds, 3) for kind, seconds in account.totals.items()}
