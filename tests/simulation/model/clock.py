"""Time that moves from event to event, and the list of what is to happen.  Nothing here sleeps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """Something that is to happen; may be called off."""

    __slots__ = ("what",)

    def __init__(self, what: Callable[[], None]) -> None:
        self.what: Callable[[], None] | None = what

    def cancel(self) -> None:
        self.what = None


class SimClock:
    """A procsv.base.clock.Clock.  Events of one time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_offset_s = 1_700_000_000.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self.wall_offset_s

    def at(self, when_s: float, what: Callable[[], None]) -> Timer:
        timer = Timer(what)
        heapq.heappush(self._due, (max(when_s, self.now_s), next(self._numbers), timer))
        return timer

    def after(self, delay_s: float, what: Callable[[], None]) -> Timer:
        return self.at(self.now_s + delay_s, what)

    def step(self) -> bool:
        """The next event happens; False if nothing is to happen any more."""
        while self._due:
            when_s, _, timer = heapq.heappop(self._due)
            if timer.what is not None:
                self.now_s = when_s
                timer.what()
                return True
        return False
