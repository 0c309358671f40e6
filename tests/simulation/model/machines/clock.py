"""One machine's monotonic clock: it has its own start, runs slightly fast or slow, and may have
stopped for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.model.clock import SimClock, Timer

ROUNDING_S = 1e-7  # an event at a given time must not find the clock slightly before it


class MachineClock(SimClock):
    """This machine's view of `true`, the common time that no machine can read."""

    def __init__(self, true: SimClock, ahead_s: float, drift: float, wall_s: float) -> None:
        """`drift`: seconds gained in one second. `wall_s`: the error of its wall clock."""
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
        """Stop the clock for that long, with its machine."""
        self._ahead_s -= seconds
