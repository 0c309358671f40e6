"""Schedule saves: one at a time, by interval, on request, and again after a failure.

Part of the core (core.py).  Pure.  Each save takes the newest state, so it satisfies every earlier
request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.services.checkpoint.core.actions import Persist
from procsv.services.checkpoint.core.facts import SavableState

RETRY_S_MIN = 1.0  # after a failed save; doubles up to:
RETRY_S_MAX = 60.0

_RANK: dict[Reason, int] = {"periodic": 0, "start": 1, "manual": 2, "crash": 3, "preempt": 4, "final": 5}


def as_reason(want: str) -> Reason | None:
    """Returns the reason that a message asks for.

    None for "", and for a value outside the protocol.
    """
    return next((reason for reason in _RANK if reason == want), None)


class Saving(msgspec.Struct):
    """The current save, and when the next one may and must begin.  Times are monotonic."""

    current: Persist | None = None
    failures: int = 0  # in a row
    retry_s: float = 0.0  # when the next save may begin
    last_error: str = ""
    cadence_from_s: float | None = None  # when the interval to the next periodic save began
    _retry_reason: Reason | None = None

    @property
    def state(self) -> SavableState | None:
        """The state being saved."""
        return self.current.state if self.current is not None else None

    def start_save(self, state: SavableState, reason: Reason, plan: CheckpointPlan) -> Persist:
        self.current = Persist(state, reason, plan)
        return self.current

    def ended_well(self, now_s: float) -> None:
        self.current = None
        self.failures, self.retry_s, self._retry_reason, self.last_error = 0, 0.0, None, ""
        self.cadence_from_s = now_s

    def save_failed(self, error: str, now_s: float) -> SavableState:
        """Notes a failed save and returns the state that could not be saved."""
        assert self.current is not None, "a save failed that was never begun"
        state, self._retry_reason = self.current.state, self.current.reason
        self.current, self.last_error = None, error
        self.failures += 1
        self.retry_s = now_s + min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(self.failures - 1, 10))
        return state

    def state_lost(self) -> None:
        """Notes that the state was lost before it was saved.  The next save inherits its reason."""
        assert self.current is not None, "a save was lost that was never begun"
        self._retry_reason, self.current = self.current.reason, None

    def expedite_save(self) -> None:
        """Lets the next save begin now, even after failures, because a process asks for it."""
        self.retry_s = 0.0

    def why(self, reasons: Iterable[Reason], plan: CheckpointPlan, is_finishing: bool, now_s: float) -> Reason | None:
        """Returns why to save a state now, from `reasons`, the time and an earlier failure.

        None if there is no reason.
        """
        found = list(reasons)
        if self._retry_reason is not None:
            found.append(self._retry_reason)
        if not is_finishing and now_s >= self.cadence_due_s(plan):
            found.append("periodic")
        return max(found, key=_RANK.__getitem__, default=None)

    def cadence_due_s(self, plan: CheckpointPlan | None) -> float:
        """Returns when the next periodic checkpoint is due; infinite if none is planned."""
        if plan is None or plan.save_secs <= 0 or self.cadence_from_s is None:
            return math.inf
        return self.cadence_from_s + plan.save_secs

    def next_due_s(self, plan: CheckpointPlan | None) -> float:
        """Returns when the clock alone makes a save due, if there is a state to save.

        Infinite during a save.
        """
        if self.current is not None:
            return math.inf
        return self.retry_s if self._retry_reason else max(self.retry_s, self.cadence_due_s(plan))
