"""Keep track of reliable messages: which to send again, and which were already received.

endpoint.py uses it for every connection.  It is pure bookkeeping: it has no socket and no clock,
and takes times as arguments.
"""

from __future__ import annotations

import bisect
import itertools
import math

import msgspec

from procsv.ipc.messaging.message import Message

RESEND_S = 1.0  # an unacknowledged message is sent again after this long
UNACKED_MAX = 10_000  # most messages kept for one peer, which may be stopped for days; the oldest are dropped
NUMBER_BITS = 40  # the low bits of a sequence number; the incarnation is in the bits above
RESENT_MAX = 100  # most messages sent again at once, oldest first; the rest wait until these are acknowledged


class _Pending(msgspec.Struct):
    body: Message
    re: int  # the peer's message that this one answers; 0: none
    sent_s: float


class Outbox:
    """Unacknowledged messages to one peer, oldest first."""

    def __init__(self, incarnation: int = 0) -> None:
        """`incarnation`: the sender's.

        Each incarnation has its own range of sequence numbers.  So a late acknowledgement of a
        message from the previous incarnation never counts for a message of this one.
        """
        self._next = (incarnation << NUMBER_BITS) + 1
        self._pending: dict[int, _Pending] = {}
        self.dropped = 0  # messages beyond UNACKED_MAX, which are not sent again

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def bodies(self) -> list[Message]:
        return [pending.body for pending in self._pending.values()]

    def add_message(self, body: Message, re: int, now_s: float) -> int:
        """Keeps `body` until it is acknowledged; returns its sequence number.

        The caller sends it the first time.
        """
        if len(self._pending) >= UNACKED_MAX:
            del self._pending[next(iter(self._pending))]
            self.dropped += 1
        seq, self._next = self._next, self._next + 1
        self._pending[seq] = _Pending(body, re, now_s)
        return seq

    def acknowledge(self, seq: int) -> Message | None:
        """Removes message `seq`, which the peer has handled, and returns it.

        None if it was already removed.
        """
        pending = self._pending.pop(seq, None)
        return pending.body if pending else None

    def withdraw(self, body: Message) -> None:
        """Stops resending `body` (this very object); it may have arrived already."""
        for seq in [seq for seq, pending in self._pending.items() if pending.body is body]:
            del self._pending[seq]

    def find_message(self, seq: int) -> Message | None:
        """Returns message `seq`; None if it is acknowledged, or was never ours."""
        pending = self._pending.get(seq)
        return pending.body if pending else None

    def answers(self, seq: int) -> int:
        """Returns which message of the peer our unacknowledged message `seq` answers; 0 if none."""
        pending = self._pending.get(seq)
        return pending.re if pending else 0

    def due(self, now_s: float) -> list[tuple[int, int, Message]]:
        """Returns (seq, re, body) of the messages to send again now, and notes that they are sent."""
        if not self._pending:  # the usual case, in every turn of every event loop
            return []
        again: list[tuple[int, int, Message]] = []
        for seq, pending in itertools.islice(self._pending.items(), RESENT_MAX):
            if now_s >= pending.sent_s + RESEND_S:
                pending.sent_s = now_s
                again.append((seq, pending.re, pending.body))
        return again

    def resend_all(self) -> None:
        """Makes everything due now, after a reconnection."""
        for pending in self._pending.values():
            pending.sent_s = -math.inf

    def next_due_s(self) -> float | None:
        """Returns when the next message is due; None if no message waits."""
        if not self._pending:
            return None
        oldest = itertools.islice(self._pending.values(), RESENT_MAX)
        return min(pending.sent_s + RESEND_S for pending in oldest)

    def drop_messages(self) -> None:
        """Drops everything: the peer is gone, and its successor must not get them."""
        self._pending.clear()


class Inbox:
    """The reliable messages that were received from a peer.

    A new incarnation of the peer empties it.
    """

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, incarnation: int) -> None:
        self._incarnation = incarnation
        # [first, last] of each unbroken range of sequence numbers, in ascending order.  The first range need not begin
        # at 1: a peer that sent messages to our predecessor continues its numbers.
        self.seen: list[list[int]] = []
        self.unsettled: set[int] = set()  # received but not in effect yet: neither acknowledged nor answered

    def is_news(self, incarnation: int, seq: int) -> bool:
        """Notes `seq`; returns False if it was seen before or comes from an older incarnation.

        `seq` is 0 for a message that is not reliable.  It is not noted.
        """
        if incarnation < self._incarnation:
            return False
        if incarnation > self._incarnation:
            self._begin(incarnation)
        if seq == 0:
            return True
        # Only the range before index `at` can contain `seq`.
        at = bisect.bisect_right(self.seen, seq, key=lambda span: span[0])
        if at and seq <= self.seen[at - 1][1]:
            return False
        self.unsettled.add(seq)
        self._remember(at, seq)
        return True

    def _remember(self, at: int, seq: int) -> None:
        """Adds `seq` before range `at`, and joins ranges if it fills the gap between them."""
        if at and self.seen[at - 1][1] == seq - 1:
            self.seen[at - 1][1] = seq
        else:
            self.seen.insert(at, [seq, seq])
            at += 1
        if at < len(self.seen) and self.seen[at][0] == seq + 1:
            self.seen[at - 1][1] = self.seen.pop(at)[1]

    def mark_answered(self, seq: int) -> None:
        """Notes that `seq` was acknowledged or answered."""
        self.unsettled.discard(seq)

    def is_settled(self, incarnation: int, seq: int) -> bool:
        """Whether we may acknowledge a repeat of `seq`.

        True only once the message has taken effect.
        """
        return incarnation == self._incarnation and seq not in self.unsettled
