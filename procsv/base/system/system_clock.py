"""Read the machine's clocks.  No other module reads the time."""

from __future__ import annotations

import time


class SystemClock:
    # Taken once: a program may replace the functions in `time`, and our heartbeats must not stand still then.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)  # noqa: TID251  the one place where wall time is read
