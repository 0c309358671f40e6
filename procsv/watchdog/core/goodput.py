"""Goodput: the share of a run's time that went into steps which were kept.

Used by trainer.py.  Pure.  Starting, restoring, compiling, backing off and steps that were lost with a crash are what it
leaves out.
"""

from __future__ import annotations

import msgspec


class Goodput(msgspec.Struct):
    started_s: float  # of the run
    _kept_s: float = 0.0
    _ready_s: float | None = None  # when the trainer that now runs had ended its first step
    _first_step: int = 0

    def start_training(self, ended_s: float, step: int) -> None:
        self._ready_s, self._first_step = ended_s, step

    def end_training(self, now_s: float, last_step: int, resume_step: int) -> None:
        """The trainer is dead; steps after `resume_step` will be made again."""
        if self._ready_s is None:
            return
        trained_s = max(0.0, now_s - self._ready_s)
        steps = last_step - self._first_step
        lost = min(steps, last_step - resume_step)
        self._kept_s += trained_s * (1 - max(0, lost) / steps) if steps > 0 else 0.0
        self._ready_s = None

    def stood_still(self, seconds: float) -> None:
        """The trainer lived, but did not train for so long."""
        if self._ready_s is not None:
            self._ready_s += seconds

    def value(self, now_s: float) -> float:
        """From 0 to 1."""
        going_s = max(0.0, now_s - self._ready_s) if self._ready_s is not None else 0.0
        run_s = now_s - self.started_s
        return round(min(1.0, (self._kept_s + going_s) / run_s), 4) if run_s > 0 else 0.0
