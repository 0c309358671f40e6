"""Reliable delivery, as pure bookkeeping: what to say again, what has been heard already.

Called by channel.py for every connection.  No socket and no clock inside: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from procsv.ipc.errors import ProcsvBug
from procsv.ipc.messages import Message

RESEND_S = 1.0  # an unacknowledged message is said again after this long
UNACKED_MAX = 10_000  # messages to one peer; more is our own bug: bulk goes by EventBacklog or by file


@dataclass(slots=True)
class _Pending:
    body: Message
    re: int
    said_s: float


class Outbox:
    """Messages to one peer that it has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self._next = 1
        self._pending: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, body: Message, re: int, now_s: float) -> int:
        """Takes charge of `body`; its sequence number.  The caller says it for the first time."""
        if len(self._pending) >= UNACKED_MAX:
            raise ProcsvBug(f"{UNACKED_MAX} unacknowledged messages to one peer")
        seq, self._next = self._next, self._next + 1
        self._pending[seq] = _Pending(body, re, now_s)
        return seq

    def acknowledge(self, seq: int) -> Message | None:
        """The peer has handled `seq`; the message it was, or None if that is old news."""
        pending = self._pending.pop(seq, None)
        return pending.body if pending else None

    def due(self, now_s: float, all_of_them: bool = False) -> list[tuple[int, int, Message]]:
        """(seq, re, body) to say again now: the late ones, or all after a reconnection."""
        again = []
        for seq, pending in self._pending.items():
            if all_of_them or now_s - pending.said_s >= RESEND_S:
                pending.said_s = now_s
                again.append((seq, pending.re, pending.body))
        return again

    def next_due_s(self) -> float | None:
        """When `due` will have something to say, or None."""
        return min((p.said_s for p in self._pending.values()), default=None) if self._pending else None

    def forget(self) -> None:
        """The peer these were for is gone and its successor is not to hear them."""
        self._pending.clear()


class Inbox:
    """Which reliable messages of a peer have been handled.  A peer's new incarnation starts from nothing."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._floor = 0  # every seq up to it was seen
        self._above: set[int] = set()
        self._open: set[int] = set()  # heard, neither acknowledged nor answered: what it asks has not taken effect yet

    def is_news(self, incarnation: int, seq: int) -> bool:
        """False for what was seen before and for what an older incarnation says.  Remembers `seq`."""
        if incarnation < self._incarnation:
            return False
        if incarnation > self._incarnation:
            self._incarnation, self._floor, self._above, self._open = incarnation, 0, set(), set()
        if seq == 0:
            return True
        if seq <= self._floor or seq in self._above:
            return False
        self._open.add(seq)
        self._above.add(seq)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.discard(self._floor)
        return True

    def settle(self, seq: int) -> None:
        """`seq` was acknowledged or answered."""
        self._open.discard(seq)

    def is_settled(self, incarnation: int, seq: int) -> bool:
        """Whether `seq`, seen again, may be acknowledged again: never before it has taken effect."""
        return incarnation == self._incarnation and seq not in self._open

    def forget(self) -> None:
        self._incarnation, self._floor, self._above, self._open = 0, 0, set(), set()
