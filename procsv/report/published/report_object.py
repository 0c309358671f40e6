"""The object that `procsv report --json` prints.

Used by scripts/docs, and by programs that ask for the report.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from procsv.base.journal.entries import Seconds, Step
from procsv.base.outcome import FitPlace
from procsv.report.account import Kind


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of the program."""

    incarnation: int
    pid: int
    started_at: Seconds
    promoted: bool
    ready_at: Seconds | None
    ended_at: Seconds | None
    source: str
    origin: str = field(name="from")
    restored_step: Step
    recovery_seconds: Seconds | None
    last_step: Step
    lost_steps: int
    lost_seconds: Seconds  # since its last save, of a program without a step counter
    lost_sessions: int
    code: int | None
    signal: str | None
    cause: str
    evidence: str


class TaskReport(Struct, frozen=True, kw_only=True):
    """The account of one task of several."""

    seconds: dict[Kind, Seconds]
    goodput: Annotated[float, Meta(ge=0, le=1)]
    failures: int
    lost_steps: int
    hosts: Annotated[tuple[str, ...], Meta(description="of several machines: where it was, one after the other")]
    incarnations: tuple[Attempt, ...]


class Piece(Struct, frozen=True, kw_only=True):
    """A piece of the run's time."""

    kind: Kind
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
    seconds: dict[Kind, Seconds]
    goodput: Annotated[float, Meta(ge=0, le=1)]
    launches: int
    failures: int
    lost_steps: int
    step: Step
    fit: FitPlace | None  # how far a fit of Keras has come
    durable_step: Step
    damaged_lines: int
    incarnations: tuple[Attempt, ...]
    tasks: dict[str, TaskReport]  # by name, where there are several
    timeline: tuple[Piece, ...]
    events: Annotated[tuple[dict[str, Any], ...], Meta(description="journal lines, by journal-line.json")]
