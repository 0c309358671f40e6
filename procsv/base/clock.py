"""Define what a clock is.

Cores take `now_s` as an argument; system_clock.py reads the machine's clocks.

Monotonic seconds (CLOCK_MONOTONIC) measure durations, and all processes of one boot share them.
Wall seconds are Unix time.  They are for people, and for comparing with the times of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


def first_due_s(dues_s: Iterable[float | None]) -> float | None:
    """Returns the earliest of `dues_s`, in seconds of one clock; None if all are None.

    Event loops call it in every turn.
    """
    first_s: float | None = None
    for due_s in dues_s:
        if due_s is not None and (first_s is None or due_s < first_s):
            first_s = due_s
    return first_s
