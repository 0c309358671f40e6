"""Start that a member was ordered, and that waits for a standby which is nearly ready.

Pure.  Used by edge/members/own_task.py.  The coordinator's own tasks wait before their start is counted as one (trainer.py); here it is
ordered already, so whoever withdraws it answers for it.  How long is waited is decided in standby.py, as there.
"""

from __future__ import annotations

import msgspec

from procsv.watchdog.core.task.standby import Standby


class OrderedStart(msgspec.Struct):
    """At most one: an attempt is ordered when the one before it is gone."""

    _incarnation: int = 0  # that waits; 0: none
    _ordered_s: float = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._incarnation > 0

    def order(self, incarnation: int, now_s: float) -> None:
        """That attempt is to be started.  One that was ordered before is nobody's any more."""
        self._incarnation, self._ordered_s = incarnation, now_s

    def take_due(self, standby: Standby, now_s: float) -> int:
        """The attempt that is to be started now; 0: none."""
        if not self.is_waiting:
            return 0
        if now_s < standby.start_s(self._ordered_s):
            standby.hurry(now_s)
            return 0
        return self._take()

    def withdraw(self, incarnation: int = 0) -> int:
        """Takes the order back, if it is for that attempt (0: for whichever); the attempt, or 0 if there was none."""
        return self._take() if incarnation in (0, self._incarnation) else 0

    def _take(self) -> int:
        taken, self._incarnation = self._incarnation, 0
        return taken
