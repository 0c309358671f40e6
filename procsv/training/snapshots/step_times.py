"""Times of the training thread's calls, and what those that a snapshot overlaps lose.

A copy takes cores and memory bandwidth from the steps beside it, and the step after a capture pays for what it copies on write.
Both are seen in the length of those steps, against the mean of the others: where other programs make some steps long, they make
both kinds long.  Fed by the boundary, read by the snapshotter.
"""

from __future__ import annotations

import statistics
from collections import deque

QUIET_KEPT = 31
QUIET_MIN = 5  # fewer tell nothing
CALL_FACTOR_MAX = (
    5.0  # of the median: what lasts longer is another kind of call, an evaluation say, and counts as that long
)


class StepTimes:
    """In seconds.  `add` is called on the training thread, the others by whoever takes the snapshot."""

    __slots__ = ("_is_copied", "_lost", "_overlapped", "_quiet")

    def __init__(self) -> None:
        self._quiet: deque[float] = deque(maxlen=QUIET_KEPT)
        self._overlapped: list[float] | None = None  # calls since the last capture, as long as its copy runs
        self._is_copied = False
        self._lost: float | None = None

    def add(self, call_s: float) -> None:
        if self._overlapped is None:
            self._quiet.append(call_s)
            return
        self._overlapped.append(call_s)
        if self._is_copied:
            self._lost, self._overlapped = self._sum_loss(self._overlapped), None

    def captured(self) -> None:
        """Calls from here on are beside a copy, or copy on write."""
        self._overlapped, self._is_copied = [], False

    def copied(self) -> None:
        """The call that is under way, or the next one, is the last that the snapshot has slowed."""
        self._is_copied = True

    def take_lost(self) -> float | None:
        """What the calls beside the last snapshot have lost all together, once; None if that is not known."""
        lost, self._lost = self._lost, None
        return lost

    @property
    def median_s(self) -> float:
        """Of the calls that no snapshot overlaps; 0.0: not known."""
        quiet = list(self._quiet)
        return statistics.median(quiet) if len(quiet) >= QUIET_MIN else 0.0

    def _sum_loss(self, overlapped: list[float]) -> float | None:
        longest_s = CALL_FACTOR_MAX * self.median_s
        if not longest_s:
            return None
        usual_s = statistics.fmean(min(call_s, longest_s) for call_s in self._quiet)
        return sum(min(call_s, longest_s) - usual_s for call_s in overlapped)
