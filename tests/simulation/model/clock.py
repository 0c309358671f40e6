"""Time that moves from event to event, with the list of future events. Nothing here sleeps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Timer(list[Any]):
    """A future event as [when, number, what]. It may be cancelled.

    It is a list so that the queue compares entries without calling into Python: most of the
    simulation passes through here.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class SimClock:
    """A procsv.base.clock.Clock. Events at the same time happen in the order of their requests."""

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
        """Run the next event. Return False if there is none."""
        while self._due:
            when_s, _, what = heapq.heappop(self._due)
            if what is not None:
                self.now_s = when_s
                what()
                return True
        return False
