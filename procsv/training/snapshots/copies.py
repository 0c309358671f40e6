"""Copies of the chief's snapshots on another machine, as the chief hears of them: how long each takes from its capture to be whole there.

Pure.  Used by cadence.py.  That somebody keeps them is only known from the copies that come: where the newest snapshots have none, as
nobody does any more, or cannot, it is as if there had never been any.
"""

from __future__ import annotations

import msgspec

LAGS_KEPT = 8  # the longest of them counts
CAPTURES_KEPT = 16  # without a copy in so many, nobody keeps any


class Copies(msgspec.Struct):
    """Times are monotonic seconds."""

    lags_s: list[float] = []  # of the newest copies
    lates_s: list[
        float
    ] = []  # of the newest snapshots, from when each was due to its capture: the step under way, and those of other tasks
    _captured_s: dict[int, float] = {}  # of the newest snapshots, by sequence
    _kept: int = 0  # the newest sequence that has been copied

    def captured(self, sequence: int, now_s: float, due_s: float | None = None) -> None:
        """`due_s`: when it was to be; None: it was asked for."""
        if due_s is not None:
            self.lates_s = [*self.lates_s[1 - LAGS_KEPT :], now_s - due_s]
        self._captured_s[sequence] = now_s
        if len(self._captured_s) > CAPTURES_KEPT:
            del self._captured_s[next(iter(self._captured_s))]
        if sequence - self._kept > CAPTURES_KEPT:
            self.lags_s = []

    def kept(self, sequence: int, now_s: float) -> None:
        """Another machine has that one whole."""
        if (
            captured_s := self._captured_s.get(sequence)
        ) is not None:  # else it is of an attempt before, or too old to tell
            self.lags_s = [*self.lags_s[1 - LAGS_KEPT :], now_s - captured_s]
            self._kept = max(self._kept, sequence)

    def captured_s(self, sequence: int) -> float | None:
        """When that was; None: not known."""
        return self._captured_s.get(sequence)

    @property
    def lag_s(self) -> float:
        """From a capture to its copy, as it was at worst of late; 0.0: nobody keeps any."""
        return max(self.lags_s, default=0.0)

    @property
    def late_s(self) -> float:
        """How long after it is due a snapshot is captured, as it was at worst of late."""
        return max(self.lates_s, default=0.0)
