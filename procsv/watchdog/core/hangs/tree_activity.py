"""Activity of a program where procsv does not see into it: whether any of its processes has done anything at all.

Used by trainer_liveness.py, for all that is no step.  Pure: what was read of the machine is an argument, a number that changes
whenever a thread of the program has run.  A thread that makes a system call or writes output has run; one that waits has not.
"""

from __future__ import annotations

import math

import msgspec

LOOK_S_MAX = 10.0  # between two looks at all processes and threads of a program, which cost a few milliseconds
LOOKS_PER_LIMIT = 8


class TreeActivity(msgspec.Struct):
    """Of one process tree."""

    _last: int | None = None
    _looked_s: float = -math.inf
    _idle_s: float = 0.0  # up to the last look; of a longer pause between two only so much counts

    @property
    def is_seen(self) -> bool:
        return self._last is not None

    def is_due(self, limit_s: float, now_s: float) -> bool:
        return now_s - self._looked_s >= _look_s(limit_s)

    def look(self, activity: int | None, limit_s: float, now_s: float) -> None:
        """`activity` as it is now; None if it was not looked at, or cannot be."""
        if activity is None:
            return
        passed_s = min(now_s - self._looked_s, 2 * _look_s(limit_s))
        self._idle_s = self._idle_s + passed_s if activity == self._last else 0.0
        self._last, self._looked_s = activity, now_s

    def idle_s(self, now_s: float) -> float:
        """How long nothing has run; 0.0 but right after a look, since it may have gone on meanwhile."""
        return self._idle_s if now_s == self._looked_s else 0.0


def _look_s(limit_s: float) -> float:
    return min(LOOK_S_MAX, limit_s / LOOKS_PER_LIMIT)
