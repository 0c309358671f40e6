"""Read the machine's clocks.  No other module reads the time."""

from __future__ import annotations

import time


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()  # noqa: TID251  the one place where wall time is read
