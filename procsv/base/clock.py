"""Clocks as objects.  Cores take `now_s` as an argument and read no clock; system_clock.py has the machine's.

Monotonic seconds measure durations and are comparable between the processes of one boot (CLOCK_MONOTONIC);
wall seconds are only ever written down for people.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...
