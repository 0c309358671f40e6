"""One machine's monotonic clock: it has its own start, runs slightly fast or slow, and may have
stopped for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.model.clock import SimClock, Timer

ROUNDING_S = 1e-7  # what is to happen at a time must not find that it is a little before it


class MachineClock(SimClock):
    """`true`, the time that all machines share and none can read, as this machine sees it."""

    def __init__(self, true: SimClock, ahead_s: float, drift: float, wall_s: float) -> None:
        """`drift`: seconds that it gains in one.  `wall_s`: what its wall clock is off by."""
        self._true, self._ahead_s, self._rate = true, ahead_s, 1.0 + drift
        self.wall_offset_s = true.wall_offset_s + wall_s - ahead_s

    @property
    def now_s(self) -> float:
        return self._true.now_s * self._rate + self._ahead_s

    @now_s.setter
    def now_s(self, value: float) -> None:
        raise AssertionError("time is not this machine's to move")

    def monotonic(self) -> float:
        return self._true.now_s * self._rate + self._ahead_s

    def at(self, when_s: float, what: Callable[[], None]) -> Timer:
        return self._true.at((when_s - self._ahead_s) / self._rate + ROUNDING_S, what)

    def after(self, delay_s: float, what: Callable[[], None]) -> Timer:
        return self._true.after(delay_s / self._rate, what)

    def step(self) -> bool:
        raise AssertionError("time is not this machine's to move")

    def stand_still(self, seconds: float) -> None:
        """It was stopped for so long, with the machine."""
        self._ahead_s -= seconds
