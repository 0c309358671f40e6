"""Clocks as objects.  Cores take `now_s` as an argument and read no clock; system_clock.py has the machine's.

Monotonic seconds measure durations and are comparable between the processes of one boot (CLOCK_MONOTONIC);
wall seconds are only ever written down for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


def first_due_s(dues_s: Iterable[float | None]) -> float | None:
    """The earliest of `dues_s`, in seconds of one clock; None: none of them ever comes.  Loops ask in every turn."""
    first_s: float | None = None
    for due_s in dues_s:
        if due_s is not None and (first_s is None or due_s < first_s):
            first_s = due_s
    return first_s
