"""Check, acknowledge and resend messages at the two ends of a channel, over any transport.

The sender numbers its *reliable* messages on each connection (`seq`; 0 in any other message).  An
answer or an acknowledgement carries in `re` the number of the message that it refers to.  The
sender keeps a reliable message in its outbox until the receiver acknowledges or answers it.  Until
then it resends the message every RESEND_S (delivery.py), and on each reconnection.  The receiver's
inbox drops repeated messages.  Sends never block.

zmq_transport.py implements the channel with ZeroMQ, and tests/support/memory_transport.py in
memory.  One thread owns a channel.  This module never touches a socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import COMMAND_LINE, TaskId
from procsv.ipc.messaging.delivery import Inbox, Outbox
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import PROTOCOL, Ack, Body, Envelope, decode, encode

DROPPED_REASONS_MAX = 50  # reasons that are counted separately; further ones are counted together as "other"
REPEATED = "seen before"  # the only reason that `refused` does not count, because repeats are part of the protocol
DEAD_MAX = 1000  # remembered connections of dead processes
PARTED_MAX = 100  # lost connections whose other end may be alive and come back
GARBAGE_MAX = 200  # bad messages in one call of a server's `receive`, so that a flood cannot starve the caller


class Address(msgspec.Struct, frozen=True):
    """A sender.  Run, task and incarnation decide whether its messages are accepted."""

    run: str
    task: TaskId
    incarnation: int


class Peer(msgspec.Struct):
    """The state of one connection, and what is known of its other end."""

    outbox: Outbox
    inbox: Inbox = msgspec.field(default_factory=Inbox)
    task: TaskId | None = None  # None until its first message
    incarnation: int = 0
    is_reachable: bool = True  # False if the last message to it found no connection


class Received(msgspec.Struct, frozen=True):
    """A new message.  `who` identifies the connection to answer on."""

    who: bytes
    task: TaskId
    incarnation: int
    seq: int
    re: int
    body: Body
    answers: Message | None  # the reliable message of ours that it answers, if it is the first answer


class Put(Enum):
    """The result of handing a message to the transport."""

    TAKEN = auto()
    FULL = auto()  # no connection yet, or its queue is full
    NOBODY = auto()  # the server has no such connection


class Endpoint(ABC):
    """The part that server and client share: encode, acknowledge, and count dropped messages."""

    def __init__(self, me: Address, clock: Clock) -> None:
        self.me = me
        self.dropped: Counter[str] = Counter()  # why -> how many messages
        self._clock = clock

    @property
    def refused(self) -> int:
        """How many messages were dropped for any reason but a repetition.

        They were garbage, from another run, from an older incarnation or a dead process, or in
        breach of their contract.
        """
        return sum(count for why, count in self.dropped.items() if why != REPEATED)

    @abstractmethod
    def _put(self, frames: list[bytes]) -> Put:
        """Hands a message to the transport; never blocks."""

    @abstractmethod
    def _take(self) -> list[bytes] | None:
        """Returns the next message that has arrived, or None."""

    @abstractmethod
    def _acknowledge(self, who: bytes, seq: int) -> None: ...

    def acknowledge(self, received: Received) -> None:
        """Tells the sender that its message has taken effect, so that it stops resending it."""
        if received.seq:
            self._acknowledge(received.who, received.seq)

    def _envelope(self, seq: int, re: int, body: Message, receiver: TaskId | None = None) -> bytes:
        """Returns the bytes to send.  ProcsvBug if sender, receiver or `seq` break the contract."""
        contract = body.contract
        if not contract.may_be_sent_by(self.me.task) or (
            receiver is not None and not contract.may_be_sent_to(receiver)
        ):
            raise ProcsvBug(f"{self.me.task} sends {type(body).__name__} to {receiver or 'its server'}")
        if contract.is_reliable != (seq > 0):
            raise ProcsvBug(f"{type(body).__name__} is {'' if contract.is_reliable else 'not '}a reliable message")
        return encode(
            Envelope(
                protocol=PROTOCOL,
                run=self.me.run,
                task=self.me.task,
                incarnation=self.me.incarnation,
                seq=seq,
                re=re,
                body=body,
            )
        )

    def drop(self, why: str) -> None:
        """Counts a dropped message.

        `why` may contain text from the peer, so the number of separate counts is limited.
        """
        self.dropped[why if why in self.dropped or len(self.dropped) < DROPPED_REASONS_MAX else "other"] += 1

    def _open_message(self, data: bytes, who: bytes, peer: Peer) -> Received | None:
        """Checks an arriving message: version, run, incarnation, contract, repetition."""
        try:
            message = decode(data)
        except PeerError as error:
            self.drop(str(error)[:60])
            return None
        if message.run != self.me.run and COMMAND_LINE not in (message.task, self.me.task):
            self.drop("another run")
            return None
        if why := self._why_dropped(message):
            self.drop(why)
            return None
        if why := self._find_breach(message, peer.outbox.find_message(message.re)):
            self.count_breach(why)
            if message.seq:
                self._acknowledge(who, message.seq)  # otherwise the sender would resend it again and again
            return None
        if not peer.inbox.is_news(message.incarnation, message.seq):
            self.drop(REPEATED)
            if message.seq and peer.inbox.is_settled(message.incarnation, message.seq):
                self._acknowledge(who, message.seq)  # the first acknowledgement was lost
            return None
        peer.task, peer.incarnation, peer.is_reachable = message.task, message.incarnation, True
        if asked_seq := peer.outbox.answers(message.re):
            # `re` names a message of ours that answered the peer's message `asked_seq`.  So the peer now confirms that
            # answer, and we may acknowledge repeats of `asked_seq`.  If we had done so before, and our answer had been
            # lost, the peer would have stopped asking, and would never have got an answer.
            peer.inbox.mark_answered(asked_seq)
        answered = peer.outbox.acknowledge(message.re) if message.re else None
        return Received(
            who=who,
            task=message.task,
            incarnation=message.incarnation,
            seq=message.seq,
            re=message.re,
            body=message.body,
            answers=answered,
        )

    def _find_breach(self, message: Envelope, question: Message | None) -> str:
        """Returns how a message breaches its contract; "" if it does not.

        `question`: the unanswered message of ours that it answers; None if it answers none.
        """
        body = message.body
        name, contract, is_answer = type(body).__name__, body.contract, not isinstance(body, Ack)
        if not contract.may_be_sent_by(message.task):
            return f"{name} from {message.task}"
        if not contract.may_be_sent_to(self.me.task):
            return f"{name} to {self.me.task}"
        if question is not None and is_answer and not isinstance(body, question.contract.answers):
            return f"{name} in answer to {type(question).__name__}"
        return ""

    def count_breach(self, why: str) -> None:
        """Counts a message that breaches its contract.

        The sender is at fault, so this process carries on.  (Tests replace this method, and fail.)
        """
        self.drop(why)

    def _why_dropped(self, message: Envelope) -> str:
        """Returns why to drop a message because of its sender; "" to accept it."""
        return ""


class ServerEndpoint(Endpoint):
    """The end that others connect to.  `who` identifies a connection."""

    def __init__(self, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.peers: dict[bytes, Peer] = {}  # in the order of their first messages
        # Lost connections of tasks that have a later connection.  We send nothing on them until the peer comes back.
        self._parted: dict[bytes, Peer] = {}
        self._newest: dict[TaskId, int] = {}  # the highest incarnation that has sent a message
        self._dead: dict[bytes, None] = {}  # connections of processes that are known to be dead, newest last

    def receive(self) -> Received | None:
        """Returns the next new message, or None if nothing waits."""
        for _ in range(GARBAGE_MAX):
            taken = self._take()
            if taken is None:
                return None
            who, *frames = taken
            if len(frames) != 1:
                self.drop("wrong number of frames")
                continue
            if who in self._dead:
                self.drop("a process that is dead")
                continue
            peer = self.peers.get(who) or self._parted.get(who)
            if peer is None:
                peer = Peer(Outbox(self.me.incarnation))  # added to `peers` below once it has sent a valid message
            received = self._open_message(frames[0], who, peer)
            if received is None:
                continue
            self._parted.pop(who, None)
            self.peers[who] = peer
            self._newest[received.task] = received.incarnation
            return received
        return None

    def _why_dropped(self, message: Envelope) -> str:
        """Returns "an older incarnation" if a newer one of the task has sent a message; otherwise "".

        It does not matter on which connection the newer incarnation has sent it.
        """
        return "an older incarnation" if message.incarnation < self._newest.get(message.task, 0) else ""

    def send_reliable(self, who: bytes, body: Message, re: int = 0) -> int:
        """Sends `body` until `who` acknowledges it; returns its sequence number."""
        peer = self.peers[who]
        seq = peer.outbox.add_message(body, re, self._clock.monotonic())
        self._send(who, seq, re, body)
        return seq

    def broadcast(self, body: Message, only: TaskId | None = None) -> int:
        """Sends `body` reliably to all peers that may receive it, or only to task `only`.

        Skips a peer if its task has a peer of a newer incarnation.  Returns how many receive it.
        """
        newest: dict[TaskId | None, int] = {}
        count = 0
        for peer in self.peers.values():
            newest[peer.task] = max(newest.get(peer.task, 0), peer.incarnation)
        for who, peer in list(self.peers.items()):
            may_receive = peer.task is not None and body.contract.may_be_sent_to(peer.task)
            if (may_receive if only is None else peer.task == only) and peer.incarnation == newest[peer.task]:
                self.send_reliable(who, body)
                count += 1
        return count

    def withdraw(self, body: Message) -> None:
        """Stops resending `body` (this very object) to any peer; it may have arrived already."""
        for peer in self.peers.values():
            peer.outbox.withdraw(body)

    def send(self, who: bytes, body: Message, re: int = 0) -> None:
        """Sends `body` once."""
        if re and (peer := self.peers.get(who)) is not None:
            peer.inbox.mark_answered(re)
        self._send(who, 0, re, body)

    def send_to_each(self, receivers: Iterable[bytes], body: Message) -> None:
        """Sends `body` once to each receiver, and encodes it only once."""
        data, checked = self._envelope(0, 0, body), set[str]()
        for who in receivers:
            peer = self.peers[who]
            if peer.task is not None and peer.task.role not in checked:
                self._envelope(0, 0, body, peer.task)  # raises ProcsvBug if this role may not receive it
                checked.add(peer.task.role)
            peer.is_reachable = self._put([who, data]) is not Put.NOBODY

    def _acknowledge(self, who: bytes, seq: int) -> None:
        self.send(who, Ack(), re=seq)

    def _send(self, who: bytes, seq: int, re: int, body: Message) -> None:
        peer = self.peers.get(who)
        put = self._put([who, self._envelope(seq, re, body, peer.task if peer is not None else None)])
        if peer is not None:
            peer.is_reachable = put is not Put.NOBODY

    def resend_due(self) -> None:
        """Resends the messages that are due, and sets aside connections that were replaced."""
        now_s, is_apart = self._clock.monotonic(), False
        for who, peer in self.peers.items():
            for seq, re, body in peer.outbox.due(now_s):
                self._send(who, seq, re, body)
            is_apart = is_apart or not peer.is_reachable
        if is_apart:
            self._set_aside_superseded()

    def _set_aside_superseded(self) -> None:
        """Sets aside each lost connection whose task has a later connection.

        A command's connection is forgotten.  Any other is kept, because two launches may claim the
        same task.  The launch with the older connection may come back, and its queues must then
        continue where they stopped.
        """
        later: set[TaskId | None] = set()
        for who, peer in reversed(list(self.peers.items())):
            if peer.task in later and not peer.is_reachable:
                del self.peers[who]
                if peer.task != COMMAND_LINE:  # each command is a new process and never comes back
                    self._parted[who] = peer
            later.add(peer.task)
        while len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def forget(self, task: TaskId, up_to_incarnation: int) -> None:
        """Drops the peers of `task` up to this incarnation, and their unacknowledged messages.

        The caller knows that all these processes are dead.  What they sent before they died may
        still be received.
        """
        for peers in (self.peers, self._parted):
            for who in [w for w, p in peers.items() if p.task == task and p.incarnation <= up_to_incarnation]:
                del peers[who]

    def forget_others(self, who: bytes) -> None:
        """Ignores the task's other connections, because the process at `who` replaces a dead one.

        Nothing more is received on the other connections.  All messages that are queued for the
        task are dropped.  That includes the messages for `who`: they were sent before it was known
        to replace the dead process, and were meant for that process.
        """
        self.peers[who].outbox.drop_messages()
        task = self.peers[who].task
        for peers in (self.peers, self._parted):
            for other in [other for other, peer in peers.items() if peer.task == task and other != who]:
                del peers[other]
                self._dead[other] = None
        while len(self._dead) > DEAD_MAX:
            del self._dead[next(iter(self._dead))]

    def unacknowledged(self, task: TaskId) -> int:
        """Returns how many messages the peers of `task` have not acknowledged."""
        return sum(len(p.outbox) for p in self.peers.values() if p.task == task)


class ClientEndpoint(Endpoint):
    """The end that connects.  Its server may not exist yet, and may come and go."""

    def __init__(self, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.peer = Peer(Outbox(me.incarnation))
        self.connections = 0  # number of (re)connections; after each, the owner introduces itself again
        self.wants_tick = False  # messages wait for a second call of `resend_due`

    @property
    def is_pending(self) -> bool:
        """Whether `resend_due` may have work even if no message has arrived."""
        return self.wants_tick or len(self.peer.outbox) > 0

    @abstractmethod
    def _new_connections(self) -> int:
        """Returns how many connections were made since the last call."""

    def receive(self) -> Received | None:
        """Returns the next new message, or None if nothing waits."""
        while (frames := self._take()) is not None:
            if len(frames) != 1:
                self.drop("wrong number of frames")
                continue
            received = self._open_message(frames[0], b"", self.peer)
            if received is not None:
                return received
        return None

    def send_reliable(self, body: Message, re: int = 0) -> int:
        """Sends `body` until the server acknowledges it; returns its sequence number."""
        seq = self.peer.outbox.add_message(body, re, self._clock.monotonic())
        self._send(seq, re, body)
        return seq

    def send(self, body: Message, re: int = 0) -> bool:
        """Sends `body` once; returns False if no server is connected."""
        self.peer.inbox.mark_answered(re)
        return self._send(0, re, body)

    def _acknowledge(self, who: bytes, seq: int) -> None:
        self.send(Ack(), re=seq)

    def _send(self, seq: int, re: int, body: Message) -> bool:
        return self._put([self._envelope(seq, re, body)]) is Put.TAKEN

    def resend_due(self) -> bool:
        """Resends the messages that are due.  Returns whether there is a new connection.

        On a new connection, Hello must be the first message.  So if there is one, this call sends
        nothing.  The caller sends Hello and what goes with it, and calls again at once; that call
        resends everything that was not acknowledged.  If messages wait, `wants_tick` keeps the
        event loop from sleeping between the two calls.
        """
        made = self._new_connections()
        if made:
            self.connections += made
            self.peer.outbox.resend_all()
            self.wants_tick = len(self.peer.outbox) > 0
            return True
        self.wants_tick = False
        for seq, re, body in self.peer.outbox.due(self._clock.monotonic()):
            self._send(seq, re, body)
        return False
