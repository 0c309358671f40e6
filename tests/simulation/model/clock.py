"""Time that moves from event to event, with the list of future events. Nothing here sleeps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Timer(list[Any]):
    """Something that is to happen, as [when, number, what]; may be called off.

    A list, as the queue then compares its entries without a call into Python: most of what happens passes through here.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class SimClock:
    """A procsv.base.clock.Clock.  Events of one time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_offset_s = 1_700_000_000.0
        self._due: list[Timer] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self.wall_offset_s

    def at(self, when_s: float, what: Callable[[], None]) -> Timer:
        now_s = self.now_s
        timer = Timer((when_s if when_s > now_s else now_s, next(self._numbers), what))
        heapq.heappush(self._due, timer)
        return timer

    def after(self, delay_s: float, what: Callable[[], None]) -> Timer:
        return self.at(self.now_s + delay_s, what)

    def step(self) -> bool:
        """The next event happens; False if nothing is to happen any more."""
        while self._due:
            when_s, _, what = heapq.heappop(self._due)
            if what is not None:
                self.now_s = when_s
                what()
                return True
        return False
