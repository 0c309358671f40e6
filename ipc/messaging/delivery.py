"""Reliable delivery, as pure bookkeeping: what to send again, what has been received already.

Called by endpoint.py for every connection.  No socket and no clock inside: time is an argument.
"""

from __future__ import annotations

import bisect
import itertools
import math

import msgspec

from procsv.ipc.messaging.message import Message

RESEND_S = 1.0  # an unacknowledged message is sent again after this long
UNACKED_MAX = 10_000  # messages to one peer, one that is stopped for days, say; then the oldest are dropped
NUMBER_BITS = 40  # of the sequence numbers of one incarnation
RESENT_MAX = 100  # of them at a time, the oldest first: the rest follows when these are acknowledged


class _Pending(msgspec.Struct):
    body: Message
    re: int
    sent_s: float


class Outbox:
    """Messages to one peer that it has not acknowledged, oldest first."""

    def __init__(self, incarnation: int = 0) -> None:
        """`incarnation`: the sender's.  No two of them number alike: an acknowledgement that comes late, of what the one
        before has sent, must not count for a message of this one that nobody has received yet.
        """
        self._next = (incarnation << NUMBER_BITS) + 1
        self._pending: dict[int, _Pending] = {}
        self.dropped = 0  # messages that the peer will never get

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def bodies(self) -> list[Message]:
        return [pending.body for pending in self._pending.values()]

    def add_message(self, body: Message, re: int, now_s: float) -> int:
        """Takes charge of `body`; its sequence number.  The caller sends it for the first time."""
        if len(self._pending) >= UNACKED_MAX:
            del self._pending[next(iter(self._pending))]
            self.dropped += 1
        seq, self._next = self._next, self._next + 1
        self._pending[seq] = _Pending(body, re, now_s)
        return seq

    def acknowledge(self, seq: int) -> Message | None:
        """The peer has handled `seq`; the message it was, or None if that is old news."""
        pending = self._pending.pop(seq, None)
        return pending.body if pending else None

    def withdraw(self, body: Message) -> None:
        """`body`, that very object, is not sent again; it may have arrived."""
        for seq in [seq for seq, pending in self._pending.items() if pending.body is body]:
            del self._pending[seq]

    def find_message(self, seq: int) -> Message | None:
        """The message `seq`, if it is still open."""
        pending = self._pending.get(seq)
        return pending.body if pending else None

    def answers(self, seq: int) -> int:
        """What of the peer's our open message `seq` answers; 0 if nothing."""
        pending = self._pending.get(seq)
        return pending.re if pending else 0

    def due(self, now_s: float) -> list[tuple[int, int, Message]]:
        """(seq, re, body) to send again now."""
        if not self._pending:  # as nearly always, and every end is asked in every turn of its loop
            return []
        again: list[tuple[int, int, Message]] = []
        for seq, pending in itertools.islice(self._pending.items(), RESENT_MAX):
            if now_s >= pending.sent_s + RESEND_S:
                pending.sent_s = now_s
                again.append((seq, pending.re, pending.body))
        return again

    def resend_all(self) -> None:
        """After a reconnection: everything is due at once."""
        for pending in self._pending.values():
            pending.sent_s = -math.inf

    def next_due_s(self) -> float | None:
        """When `due` will have something, or None."""
        if not self._pending:
            return None
        oldest = itertools.islice(self._pending.values(), RESENT_MAX)
        return min(pending.sent_s + RESEND_S for pending in oldest)

    def drop_messages(self) -> None:
        """Drops everything: the peer is gone, and its successor is not to get it."""
        self._pending.clear()


class Inbox:
    """Which reliable messages of a peer have been handled.  A peer's new incarnation starts from nothing."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self.seen: list[list[int]] = []  # [first, last] of every stretch without a gap, rising: a peer that has
        # spoken to somebody before us for a week begins with a high number, and that is one stretch, too
        self.unsettled: set[int] = set()  # received, neither acknowledged nor answered: not in effect yet

    def is_news(self, incarnation: int, seq: int) -> bool:
        """False for what was seen before and for an older incarnation's messages.  Remembers `seq`."""
        if incarnation < self._incarnation:
            return False
        if incarnation > self._incarnation:
            self._begin(incarnation)
        if seq == 0:
            return True
        at = bisect.bisect_right(self.seen, seq, key=lambda stretch: stretch[0])  # behind the stretch it may be in
        if at and seq <= self.seen[at - 1][1]:
            return False
        self.unsettled.add(seq)
        self._remember(at, seq)
        return True

    def _remember(self, at: int, seq: int) -> None:
        """Adds `seq`, which belongs before stretch `at`, and closes the gap that it may have filled."""
        if at and self.seen[at - 1][1] == seq - 1:
            self.seen[at - 1][1] = seq
        else:
            self.seen.insert(at, [seq, seq])
            at += 1
        if at < len(self.seen) and self.seen[at][0] == seq + 1:
            self.seen[at - 1][1] = self.seen.pop(at)[1]

    def mark_answered(self, seq: int) -> None:
        """`seq` was acknowledged or answered."""
        self.unsettled.discard(seq)

    def is_settled(self, incarnation: int, seq: int) -> bool:
        """Whether `seq`, seen again, may be acknowledged again: never before it has taken effect."""
        return incarnation == self._incarnation and seq not in self.unsettled
