"""Orders to one member: one after the other, each until it is acknowledged, and none to an attempt that is gone.

Pure.  Used by watchdog/machines/remote_tasks.py.  A connection that breaks takes with it what is under way, and what is sent again comes
later: without this, an order could overtake the one before it, and find no attempt to be carried out with.
"""

from __future__ import annotations

from collections import deque

from procsv.ipc.messaging.member_messages import (
    ClearTask,
    FreezeTask,
    KillTask,
    SignalTask,
    StartTask,
    TellState,
    TellTask,
)

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
