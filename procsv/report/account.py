"""Represent the account of a run as data: its spans of time, its attempts and its events.

account_builder.py fills it in; text.py and page.py show it. Pure.
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
    """A piece of the run's time. `start_s` and `end_s` are Unix seconds, and never go back, even if
    the clock was set back.
    """

    kind: SpanKind
    start_s: float
    end_s: float
    incarnation: int  # of the trainer; 0 if there was no trainer

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class TrainingSpan(msgspec.Struct):
    """An uninterrupted stretch of one attempt's training, after the end of `first_step`."""

    incarnation: int
    start_s: float
    first_step: int
    end_s: float = 0.0
    last_step: int = NO_STEP
    kept_step: int = NO_STEP  # steps after this one were lost
    unsaved_s: float = 0.0  # time after its last step, lost as well

    def spans(self) -> list[Span]:
        """Split the training into kept, then redone. All steps are assumed to take equally long."""
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
    is_promoted: bool = msgspec.field(name="promoted")  # a standby became the trainer
    ready_s: Seconds | None = msgspec.field(name="ready_at")
    end_s: Seconds | None = msgspec.field(name="ended_at")
    source: str  # of its state: memory, checkpoint, fresh; "": not recorded
    origin: str = msgspec.field(name="from")
    restored_step: Step
    recovery_seconds: Seconds | None  # from the previous attempt's death to the end of the first new step
    last_step: Step
    lost_steps: int
    lost_seconds: Seconds  # only if the program has no step counter: the training since the last save
    lost_sessions: int  # how often the trainer lost the connection to a server, and survived
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
        """Whether nothing recorded how the attempt ended, because its watchdog died, too."""
        return self.end_s is not None and not self.cause

    @property
    def is_failure(self) -> bool:
        is_own = self.cause not in ("", "completed", "stopped", "lost-peer")  # lost-peer: another task failed
        return is_own and self.code != exit_codes.RESUMABLE


class Account(msgspec.Struct):
    start_s: float
    end_s: float
    launches: int = 0
    outcome: str = ""  # completed, stopped, gave up, running, interrupted
    gave_up: str = ""  # why
    # Tasks given up in the last launch, and why.
    without: dict[str, str] = msgspec.field(default_factory=dict)
    spans: list[Span] = msgspec.field(default_factory=list)
    incarnations: list[Incarnation] = msgspec.field(default_factory=list)
    remarks: list[Line] = msgspec.field(default_factory=list)  # the events to list, with corrected times
    last_step: int = NO_STEP
    durable_step: int = NO_STEP
    others_failures: int = 0  # failures of the run's other tasks
    # In a run on several machines, the machines on which the task ran, in order.
    hosts: list[str] = msgspec.field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def totals(self) -> dict[SpanKind, float]:
        """Return the seconds spent on each kind."""
        totals: dict[SpanKind, float] = dict.fromkeys(KINDS, 0.0)
        for span in self.spans:
            totals[span.kind] += span.seconds
        return totals

    @property
    def goodput(self) -> float:
        """Return the share of the active time that went into kept steps, from 0 to 1."""
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
        """Return the seconds from each death to the end of the first new step."""
        times = (i.recovery_seconds for i in self.incarnations[1:])
        return [seconds for seconds in times if seconds is not None]


def lost_share(tasks: Mapping[str, Account]) -> tuple[float, float]:
    """Return two sums over the tasks that train: active seconds that were not kept training, and
    all active seconds.
    """
    lost_s = ran_s = 0.0
    for task, account in tasks.items():
        if role_of(task) not in STEPLESS:
            totals = account.totals
            ran_s += account.wall_s - totals["stopped"]
            lost_s += account.wall_s - totals["stopped"] - totals["kept"]
    return lost_s, ran_s
