"""The account of a run as data: its spans of time, its starts, its events.

Filled in by account_builder.py; shown by text.py and page.py.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from procsv.base import exit_codes
from procsv.base.cluster import STEPLESS, role_of
from procsv.base.journal.entries import Seconds, Step
from procsv.base.journal.line import Line
from procsv.base.outcome import NO_STEP

SpanKind = Literal["kept", "redone", "down", "starting", "stalled", "stopped"]
KINDS: tuple[SpanKind, ...] = ("kept", "redone", "starting", "down", "stalled", "stopped")


class Span(msgspec.Struct, frozen=True):
    """A piece of the run's time.  `start_s` and `end_s` are Unix seconds, corrected for a clock set back."""

    kind: SpanKind
    start_s: float
    end_s: float
    incarnation: int  # of the trainer; 0 where there was none

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class TrainingSpan(msgspec.Struct):
    """The steps that one incarnation made after its first."""

    incarnation: int
    start_s: float
    first_step: int
    end_s: float = 0.0
    last_step: int = NO_STEP
    kept_step: int = NO_STEP  # what was made after this step was lost
    unsaved_s: float = 0.0  # at its end, after its last step: lost as well

    def spans(self) -> list[Span]:
        """Kept, then redone.  Steps are taken as equally long."""
        steps = self.last_step - self.first_step
        kept = min(max(self.kept_step - self.first_step, 0), steps)
        share = kept / steps if steps > 0 else float(self.kept_step >= self.last_step)
        border_s = self.start_s + max(0.0, self.end_s - self.unsaved_s - self.start_s) * share
        both = (
            Span("kept", self.start_s, border_s, self.incarnation),
            Span("redone", border_s, self.end_s, self.incarnation),
        )
        return [span for span in both if span.seconds > 0]


class Incarnation(msgspec.Struct):
    """One start of the program.  Times are Unix seconds; a step is NO_STEP where there was none."""

    number: int = msgspec.field(name="incarnation")
    pid: int
    start_s: Seconds = msgspec.field(name="started_at")
    is_promoted: bool = msgspec.field(name="promoted")  # a standby became it
    ready_s: Seconds | None = msgspec.field(name="ready_at")
    end_s: Seconds | None = msgspec.field(name="ended_at")
    source: str  # memory, checkpoint, fresh
    origin: str = msgspec.field(name="from")
    restored_step: Step
    recovery_seconds: Seconds | None  # from the death before to the end of the first new step
    last_step: Step
    lost_steps: int
    lost_seconds: Seconds  # since its last save, of a program without a step counter
    lost_sessions: int  # of a trainer that went on: the connection to a server was lost
    code: int | None
    signal: str | None
    cause: str
    evidence: str

    @classmethod
    def at_start(cls, number: int, pid: int, start_s: float) -> Incarnation:
        return cls(
            number=number,
            pid=pid,
            start_s=start_s,
            is_promoted=False,
            ready_s=None,
            end_s=None,
            source="",
            origin="",
            restored_step=NO_STEP,
            recovery_seconds=None,
            last_step=NO_STEP,
            lost_steps=0,
            lost_seconds=0.0,
            lost_sessions=0,
            code=None,
            signal=None,
            cause="",
            evidence="",
        )

    @property
    def ended_with_watchdog(self) -> bool:
        """Nobody was left to see how it ended."""
        return self.end_s is not None and not self.cause

    @property
    def is_failure(self) -> bool:
        is_own = self.cause not in ("", "completed", "stopped", "lost-peer")  # the last is the end of another task
        return is_own and self.code != exit_codes.RESUMABLE


class Account(msgspec.Struct):
    start_s: float
    end_s: float
    launches: int = 0
    outcome: str = ""  # completed, stopped, gave up, running, interrupted
    gave_up: str = ""  # why
    without: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # tasks that were given up in the last launch, and why
    spans: list[Span] = msgspec.field(default_factory=list)
    incarnations: list[Incarnation] = msgspec.field(default_factory=list)
    remarks: list[Line] = msgspec.field(default_factory=list)  # for the list of events; their times are corrected
    last_step: int = NO_STEP
    durable_step: int = NO_STEP
    others_failures: int = 0  # of the other tasks of the run
    hosts: list[str] = msgspec.field(
        default_factory=list
    )  # of a task of several machines: where it was, one after the other

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def totals(self) -> dict[SpanKind, float]:
        """Seconds of each kind."""
        totals: dict[SpanKind, float] = dict.fromkeys(KINDS, 0.0)
        for span in self.spans:
            totals[span.kind] += span.seconds
        return totals

    @property
    def goodput(self) -> float:
        """The share of the time in which the run was active that went into steps which were kept; 0 to 1."""
        totals = self.totals
        ran_s = self.wall_s - totals["stopped"]
        return totals["kept"] / ran_s if ran_s > 0 else 0.0

    @property
    def failures(self) -> int:
        return sum(incarnation.is_failure for incarnation in self.incarnations) + self.others_failures

    @property
    def lost_steps(self) -> int:
        return sum(incarnation.lost_steps for incarnation in self.incarnations)

    @property
    def lost_seconds(self) -> float:
        return sum(incarnation.lost_seconds for incarnation in self.incarnations)

    @property
    def lost_sessions(self) -> int:
        return sum(incarnation.lost_sessions for incarnation in self.incarnations)

    @property
    def recoveries_s(self) -> list[float]:
        """Seconds from each death to the end of the first new step."""
        times = (i.recovery_seconds for i in self.incarnations[1:])
        return [seconds for seconds in times if seconds is not None]


def lost_share(tasks: Mapping[str, Account]) -> tuple[float, float]:
    """Seconds of the tasks that train, all together: those that went into nothing, and all in which the run was active."""
    lost_s = ran_s = 0.0
    for task, account in tasks.items():
        if role_of(task) not in STEPLESS:
            totals = account.totals
            ran_s += account.wall_s - totals["stopped"]
            lost_s += account.wall_s - totals["stopped"] - totals["kept"]
    return lost_s, ran_s
