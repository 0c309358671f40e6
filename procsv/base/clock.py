"""Clocks as objects.  Cores take `now_s` as an argument and read no clock; system_clock.py has the machine's.

Monotonic seconds measure durations and are comparable between the processes of one boot (CLOCK_MONOTONIC);
wall seconds are only ever written down for people.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


class FakeClock:
    """Time that moves only in `advance`; the wall is the monotonic time plus a settable offset."""

    def __init__(self, wall_offset_s: float = 1_000_000_000.0) -> None:
        self.now_s = 0.0
        self.wall_offset_s = wall_offset_s

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self.wall_offset_s

    def advance(self, by_s: float) -> float:
        assert by_s >= 0.0, "monotonic time does not go back"
        self.now_s += by_s
        return self.now_s
