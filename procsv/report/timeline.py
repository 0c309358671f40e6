"""Record the timeline of a run: when it trained, and the spans of other kinds in between.

Used by account_builder.py. Pure. One span is always open. Whether training was kept or redone is
known only at the end of the run.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.outcome import NO_STEP
from procsv.report.account import Span, SpanKind, TrainingSpan


class TimelineMark(NamedTuple):
    """A saved state of a timeline, to return to."""

    training: TrainingSpan | None
    kind: SpanKind
    since_s: float
    trainings: int  # how many there were at the mark; `others` likewise
    others: int


class Timeline:
    """Times are corrected Unix seconds, and never go back."""

    def __init__(self, since_s: float = 0.0) -> None:
        self.training: TrainingSpan | None = None  # the running trainer's
        self.kind: SpanKind = "stopped"
        self.since_s = since_s
        self.incarnation = 0  # the newest one
        self._trainings: list[TrainingSpan] = []
        self._others: list[Span] = []

    # -- writing -------------------------------------------------------------------------------------------
    def switch_to(self, kind: SpanKind, now_s: float) -> None:
        """Close the open span at `now_s` and open one of `kind`."""
        if now_s > self.since_s and self.training is None:
            number = self.incarnation if self.kind in ("starting", "stalled") else 0
            self._others.append(Span(self.kind, self.since_s, now_s, number))
        self.kind, self.since_s = kind, max(now_s, self.since_s)

    def start_training(self, now_s: float, step: int) -> None:
        self.switch_to("kept", now_s)  # provisional: the real kind is known only at the end
        self.training = TrainingSpan(self.incarnation, now_s, step)

    def end_training(self, now_s: float, step: int) -> None:
        """End the training at `step`; at its first step, if `step` is lower."""
        training, self.training = self.training, None
        assert training is not None, "the end of a training that has not begun"
        training.last_step = max(step, training.first_step)
        training.end_s, training.kept_step = now_s, training.last_step
        self._trainings.append(training)
        self.since_s = now_s

    def stall(self, since_s: float, step: int) -> None:
        """Record that the trainer reached `step` and has made no progress since `since_s`."""
        if self.training is None:
            self.switch_to("stalled", max(self.since_s, since_s))
        else:
            self.end_training(max(self.training.start_s, since_s), step)
            self.switch_to("stalled", self.since_s)

    def lose(self, step: int) -> None:
        """Mark the steps after `step` as steps to redo, because training resumes from `step`."""
        for training in self._trainings:
            training.kept_step = min(training.kept_step, step)

    def lose_end(self, seconds: float) -> None:
        """Mark the last `seconds` of the newest training as time to redo. They came after its last
        step.
        """
        if self._trainings:
            self._trainings[-1].unsaved_s = seconds

    def extend_last(self, incarnation: int, step: int) -> None:
        """Correct the last step of `incarnation`'s training to `step`, which is higher than the
        step last read.
        """
        if self.made_steps(incarnation):
            self._trainings[-1].last_step = self._trainings[-1].kept_step = step

    # -- going back ----------------------------------------------------------------------------------------
    def mark(self) -> TimelineMark:
        return TimelineMark(self.training, self.kind, self.since_s, len(self._trainings), len(self._others))

    def go_back_to(self, mark: TimelineMark) -> None:
        """Remove the spans that ended since `mark`, and reopen the span that was open at the mark."""
        del self._trainings[mark.trainings :], self._others[mark.others :]
        self.training, self.kind, self.since_s = mark.training, mark.kind, mark.since_s

    # -- reading -------------------------------------------------------------------------------------------
    def made_steps(self, incarnation: int) -> bool:
        """Whether the last ended training belongs to `incarnation`."""
        return bool(self._trainings) and self._trainings[-1].incarnation == incarnation

    def step_of(self, incarnation: int) -> int:
        """Return the last step of that attempt's training; NO_STEP if it made none."""
        return self._trainings[-1].last_step if self.made_steps(incarnation) else NO_STEP

    @property
    def last_step(self) -> int | None:
        """Return the highest step of the trainings that have ended; None if none has ended."""
        return max((training.last_step for training in self._trainings), default=None)

    def spans(self) -> list[Span]:
        """Return all spans, ordered by time."""
        trained = (span for training in self._trainings for span in training.spans())
        return sorted((*self._others, *trained), key=lambda span: span.start_s)
