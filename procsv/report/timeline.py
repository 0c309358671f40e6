"""Timeline of a run as it is written: trainings, and the spans of other kinds between them, of which one is always open.

Used by account_builder.py.  Pure.  Of what kind a training was, kept or redone, is known when the run is over.
"""

from __future__ import annotations

from typing import NamedTuple

from procsv.base.outcome import NO_STEP
from procsv.report.account import Span, SpanKind, TrainingSpan


class TimelineMark(NamedTuple):
    """A timeline as it stood."""

    training: TrainingSpan | None
    kind: SpanKind
    since_s: float
    trainings: int  # how many there were
    others: int


class Timeline:
    """Times are Unix seconds, corrected; none is before the one that was written last."""

    def __init__(self, since_s: float = 0.0) -> None:
        self.training: TrainingSpan | None = None  # of the trainer that runs
        self.kind: SpanKind = "stopped"
        self.since_s = since_s
        self.incarnation = 0  # the newest one
        self._trainings: list[TrainingSpan] = []
        self._others: list[Span] = []

    # -- writing -------------------------------------------------------------------------------------------
    def switch_to(self, kind: SpanKind, now_s: float) -> None:
        """The time since the last turn was of the kind it was; from `now_s` on it is `kind`."""
        if now_s > self.since_s and self.training is None:
            number = self.incarnation if self.kind in ("starting", "stalled") else 0
            self._others.append(Span(self.kind, self.since_s, now_s, number))
        self.kind, self.since_s = kind, max(now_s, self.since_s)

    def start_training(self, now_s: float, step: int) -> None:
        self.switch_to("kept", now_s)  # the kind is known when it is over
        self.training = TrainingSpan(self.incarnation, now_s, step)

    def end_training(self, now_s: float, step: int) -> None:
        """It has come to `step`; not before its first one."""
        training, self.training = self.training, None
        assert training is not None, "the end of a training that has not begun"
        training.last_step = max(step, training.first_step)
        training.end_s, training.kept_step = now_s, training.last_step
        self._trainings.append(training)
        self.since_s = now_s

    def stall(self, since_s: float, step: int) -> None:
        """It has come to `step`, and made no progress from `since_s` on."""
        if self.training is None:
            self.switch_to("stalled", max(self.since_s, since_s))
        else:
            self.end_training(max(self.training.start_s, since_s), step)
            self.switch_to("stalled", self.since_s)

    def lose(self, step: int) -> None:
        """What was trained beyond the state of `step`, which is gone on from, has to be done again."""
        for training in self._trainings:
            training.kept_step = min(training.kept_step, step)

    def lose_end(self, seconds: float) -> None:
        """The last `seconds` of the training that has ended came after its last step, and have to be done again."""
        if self._trainings:
            self._trainings[-1].unsaved_s = seconds

    def extend_last(self, incarnation: int, step: int) -> None:
        """The last training of `incarnation`, if it made steps, had come further than was read of it: to `step`."""
        if self.made_steps(incarnation):
            self._trainings[-1].last_step = self._trainings[-1].kept_step = step

    # -- going back ----------------------------------------------------------------------------------------
    def mark(self) -> TimelineMark:
        return TimelineMark(self.training, self.kind, self.since_s, len(self._trainings), len(self._others))

    def go_back_to(self, mark: TimelineMark) -> None:
        """All that was written since is undone."""
        del self._trainings[mark.trainings :], self._others[mark.others :]
        self.training, self.kind, self.since_s = mark.training, mark.kind, mark.since_s

    # -- reading -------------------------------------------------------------------------------------------
    def made_steps(self, incarnation: int) -> bool:
        """Whether the last training that has ended was that of `incarnation`."""
        return bool(self._trainings) and self._trainings[-1].incarnation == incarnation

    def step_of(self, incarnation: int) -> int:
        """The last one that its training made; NO_STEP if it made none."""
        return self._trainings[-1].last_step if self.made_steps(incarnation) else NO_STEP

    @property
    def last_step(self) -> int | None:
        """The furthest of all; None if nothing was trained."""
        return max((training.last_step for training in self._trainings), default=None)

    def spans(self) -> list[Span]:
        """In the order of time."""
        trained = (span for training in self._trainings for span in training.spans())
        return sorted((*self._others, *trained), key=lambda span: span.start_s)
