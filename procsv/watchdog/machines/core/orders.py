"""Queue the orders for one member, and withdraw the ones for a dead attempt.

Pure. Used by watchdog/machines/remote_tasks.py. Only the first order is under way; the next one
waits until the member has acknowledged it. Without this queue, an order could overtake the one
before it: a broken connection loses the messages under way, and they are resent later. Then an
order might arrive before the attempt that it is for has started.
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
    """The orders that the member has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self._open: deque[Order] = deque()
        self._is_sent = False  # whether the first one is under way

    def __len__(self) -> int:
        return len(self._open)

    def give(self, order: Order) -> None:
        self._open.append(order)

    def due(self) -> Order | None:
        """Return the order to send now; None if there is none, or one is under way."""
        return self._open[0] if self._open and not self._is_sent else None

    def sent(self) -> None:
        """Note that the due order is under way."""
        self._is_sent = True

    def lost(self) -> None:
        """Note that the order under way was lost with its connection, so that it is due again."""
        self._is_sent = False

    def acknowledged(self, order: object) -> None:
        """Note that the member has carried out `order`. Ignore an order that is not under way."""
        if self._is_sent and self._open and self._open[0] is order:
            self._open.popleft()
            self._is_sent = False

    def attempt_died(self, incarnation: int) -> Order | None:
        """Withdraw the orders for that attempt or earlier ones; return the one under way, if it is
        among them.
        """
        under_way = self._open[0] if self._is_sent else None
        self._open = deque(one for one in self._open if not _is_for(one, incarnation))
        if under_way is None or not _is_for(under_way, incarnation):
            return None
        self._is_sent = False
        return under_way


def _is_for(order: Order, incarnation: int) -> bool:
    """Whether `order` makes sense only while that attempt, or one before it, is alive."""
    return isinstance(order, TO_LIVING) and order.incarnation <= incarnation
