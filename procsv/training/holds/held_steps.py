"""Steps of one task as the chief on another machine holds them: orders, steps and the time in, answers out.  Pure.

Used by held_task.py, under its lock.  Whatever an order says, and whether any other follows it or not, the task goes on by itself at a
limit of its own; a hold that has come to it is broken, and the answer to LetGo says so.
"""

from __future__ import annotations

import msgspec

from procsv.training.holds.frames import Answer, Capturing, Held, Here, Hold, LetGo, Order, Refused, Released, Within
from procsv.training.holds.limits import LINK_S_MAX, capture_limit_s
from procsv.training.runtime.step_hold import GATHER_S_MAX, SETTLE_S


class _Held(msgspec.Struct):
    """The hold that there is."""

    owner: str
    number: int
    until_s: float  # then steps begin again, whatever the chief does
    stood_s: float | None  # since when the task stands; None: its step has not ended yet


class HeldSteps:
    """Times are monotonic seconds of this machine."""

    def __init__(self) -> None:
        self._opened_s: float | None = None  # since when steps pass here
        self.is_within = False  # a step
        self._hold: _Held | None = None
        self._stood_s = 0.0  # of a hold that has come to its limit

    # -- the steps -----------------------------------------------------------------------------------------
    def open_steps(self, now_s: float) -> None:
        """Steps pass here from now on."""
        if self._opened_s is None:
            self._opened_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long a step that wants to begin waits at most; 0: not at all."""
        self.look_at_limit(now_s)
        return max(0.0, self._hold.until_s - now_s) if self._hold is not None else 0.0

    def begin_step(self) -> None:
        """Only where `wait_s` says 0."""
        self.is_within = True

    def end_step(self, now_s: float) -> Answer | None:
        """What the chief is told then."""
        self.is_within = False
        self.look_at_limit(now_s)
        if self._hold is None or self._hold.stood_s is not None:
            return None
        self._hold.stood_s = now_s
        return Held(self._hold.number)

    # -- the chief -----------------------------------------------------------------------------------------
    def ordered(self, order: Order, now_s: float) -> Answer | None:
        """The answer at once, if there is one."""
        self.look_at_limit(now_s)
        match order:
            case Hold():
                return self._begin(order, now_s)
            case Capturing(owner, number, limit_s):
                if (hold := self._of(owner, number)) is not None and hold.stood_s is not None:
                    hold.until_s = now_s + min(limit_s, capture_limit_s(LINK_S_MAX))
                return None
            case LetGo(owner, number):
                return self._end(owner, number, now_s)
        return Here()

    def _begin(self, order: Hold, now_s: float) -> Answer:
        """Who orders another hold has given up the one before, or is dead.  Steps go on between the two, or they would stand for both."""
        before, self._hold = self._hold, None
        if before is not None:
            return Refused(order.number, "was not let go of the hold before")
        if self._opened_s is None:
            return Refused(order.number, "has made no step yet that can be held")
        if now_s - self._opened_s < SETTLE_S:  # its attempt before may have died in a step, which the servers may be at
            return Refused(order.number, "has only just begun")
        limit_s = min(order.limit_s, GATHER_S_MAX + LINK_S_MAX)
        self._hold = _Held(order.owner, order.number, now_s + limit_s, None if self.is_within else now_s)
        return Within(order.number) if self.is_within else Held(order.number)

    def _end(self, owner: str, number: int, now_s: float) -> Answer:
        hold = self._of(owner, number)
        if hold is None:
            return Released(number, False, self._stood_s)
        self._hold = None
        if hold.stood_s is None:
            return Released(number, False, 0.0)
        return Released(number, True, now_s - hold.stood_s)

    def _of(self, owner: str, number: int) -> _Held | None:
        hold = self._hold
        return hold if hold is not None and (hold.owner, hold.number) == (owner, number) else None

    # -- its limit -----------------------------------------------------------------------------------------
    @property
    def due_s(self) -> float | None:
        """When the hold ends by itself; None: there is none."""
        return self._hold.until_s if self._hold is not None else None

    def look_at_limit(self, now_s: float) -> None:
        """Ends a hold whose time is up."""
        if self._hold is not None and now_s >= self._hold.until_s:
            self._stood_s = 0.0 if self._hold.stood_s is None else self._hold.until_s - self._hold.stood_s
            self._hold = None
