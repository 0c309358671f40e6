"""Orders to one member: one after the other, each until it is acknowledged, and none to an attempt that is gone.

Pure.  Used by watchdog/machines/remote_tasks.py.  A connection that breaks takes with it what is under way, and what is sent again comes
later: without this, an order could overtake the one before it, and find no attempt to be carried out with.
"""

from __future__ import annotations

from collections import deque

import msgspec

from procsv.ipc.messaging.member_messages import (
    ClearTask,
    FreezeTask,
    KillTask,
    SignalTask,
    StartTask,
    TellState,
    TellTask,
)
from procsv.watchdog.host.standby import Standby

Order = StartTask | SignalTask | FreezeTask | KillTask | ClearTask | TellTask | TellState

TO_LIVING = (StartTask, SignalTask, FreezeTask, KillTask, TellTask, TellState)  # pointless once the attempt is dead


class Orders:
    """Those that the member has not acknowledged, in the order in which they were given."""

    def __init__(self) -> None:
        self._open: deque[Order] = deque()
        self._is_sent = False  # the first of them

    def __len__(self) -> int:
        return len(self._open)

    def give(self, order: Order) -> None:
        self._open.append(order)

    def due(self) -> Order | None:
        """The one that is to be sent now, until it is acknowledged; None: nothing is open, or one is under way."""
        return self._open[0] if self._open and not self._is_sent else None

    def sent(self) -> None:
        """What was due is under way."""
        self._is_sent = True

    def lost(self) -> None:
        """What is under way was sent where nobody hears it: it is due once more."""
        self._is_sent = False

    def acknowledged(self, order: object) -> None:
        """The member has carried it out; any other than the one under way is old news."""
        if self._is_sent and self._open and self._open[0] is order:
            self._open.popleft()
            self._is_sent = False

    def attempt_died(self, incarnation: int) -> Order | None:
        """Withdraws what is meant for that attempt, or one before it; the order that is under way, if it is among them."""
        under_way = self._open[0] if self._is_sent else None
        self._open = deque(one for one in self._open if not _is_for(one, incarnation))
        if under_way is None or not _is_for(under_way, incarnation):
            return None
        self._is_sent = False
        return under_way


def _is_for(order: Order, incarnation: int) -> bool:
    """Whether that attempt, or one before it, must live for `order` to make sense."""
    return isinstance(order, TO_LIVING) and order.incarnation <= incarnation


class OrderedStart(msgspec.Struct):
    """A start that this member was ordered, and that waits for a standby which is nearly ready: at most one at a time.

    The coordinator's own tasks wait before their start is counted as one (trainer.py); here it is ordered already, so whoever withdraws it
    answers for it.  How long is waited is decided in standby.py, as there.
    """

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
        if now_s < self._ordered_s + standby.wait_s:
            standby.hurry(now_s)
            return 0
        return self._take()

    def withdraw(self, incarnation: int = 0) -> int:
        """Takes the order back, if it is for that attempt (0: for whichever); the attempt, or 0 if there was none."""
        return self._take() if incarnation in (0, self._incarnation) else 0

    def _take(self) -> int:
        taken, self._incarnation = self._incarnation, 0
        return taken
