"""Endpoints of a message channel, whatever carries it: check what arrives, acknowledge, send again.

Called by zmq_transport.py, which carries by ZeroMQ, and by tests/support/memory_transport.py, which carries in memory.  One thread owns a channel.
Sends never block: what cannot be sent now is kept by the outbox and sent again on reconnection, or after RESEND_S.
Never touches a socket.
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

DROPPED_REASONS_MAX = 50  # different reasons that are counted apart; more are counted together
REPEATED = "seen before"  # the only reason that is everyday life
DEAD_MAX = 1000  # connections of dead processes that are remembered
PARTED_MAX = 100  # connections that are gone whose other end may live, and come back
GARBAGE_MAX = 200  # in a row, in one call of `receive`: who floods us does not keep us from our work


class Address(msgspec.Struct, frozen=True):
    """Who speaks: run id, task and incarnation; the endpoint checks the first, deduplication uses the others."""

    run: str
    task: TaskId
    incarnation: int


class Peer(msgspec.Struct):
    """What is known of the other end of one connection."""

    outbox: Outbox
    inbox: Inbox = msgspec.field(default_factory=Inbox)
    task: TaskId | None = None  # None: it has not spoken yet
    incarnation: int = 0
    is_reachable: bool = True  # as far as the last send to it could tell


class Received(msgspec.Struct, frozen=True):
    """A message that is news: from whom (`who`, the key to answer with), and what."""

    who: bytes
    task: TaskId
    incarnation: int
    seq: int
    re: int
    body: Body
    answers: Message | None  # the reliable message of ours that `re` names, if it was still open


class Put(Enum):
    """What became of a message that was handed to the carrier."""

    TAKEN = auto()
    FULL = auto()  # no connection yet, or its queue is full
    NOBODY = auto()  # a server knows of no such connection


class Endpoint(ABC):
    """What server and client share: encoding, acknowledgement, counting of what was dropped."""

    def __init__(self, me: Address, clock: Clock) -> None:
        self.me = me
        self.dropped: Counter[str] = Counter()  # why -> how many messages
        self._clock = clock

    @property
    def refused(self) -> int:
        """How many messages were refused: garbage, too large, of another run or an older incarnation."""
        return sum(count for why, count in self.dropped.items() if why != REPEATED)

    @abstractmethod
    def _put(self, frames: list[bytes]) -> Put:
        """Hands a message to the carrier; never blocks."""

    @abstractmethod
    def _take(self) -> list[bytes] | None:
        """The next message that has come, or None."""

    @abstractmethod
    def _acknowledge(self, who: bytes, seq: int) -> None: ...

    def acknowledge(self, received: Received) -> None:
        """Tells the sender that its message has taken effect."""
        if received.seq:
            self._acknowledge(received.who, received.seq)

    def _envelope(self, seq: int, re: int, body: Message, receiver: TaskId | None = None) -> bytes:
        """The bytes to send.  ProcsvBug for what this role may not send, or not in this way, or not to that role."""
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
        """Counts a message that is dropped.  `why` may hold a peer's text: only so many are counted apart."""
        self.dropped[why if why in self.dropped or len(self.dropped) < DROPPED_REASONS_MAX else "other"] += 1

    def _open_message(self, data: bytes, who: bytes, peer: Peer) -> Received | None:
        """Checks a message once, where it arrives: version, run, incarnation, repetition."""
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
        if why := self._why_misdirected(message, peer.outbox.find_message(message.re)):
            self.refuse(why)
            if message.seq:
                self._acknowledge(who, message.seq)  # else it would be refused once a second
            return None
        if not peer.inbox.is_news(message.incarnation, message.seq):
            self.drop(REPEATED)
            if message.seq and peer.inbox.is_settled(message.incarnation, message.seq):
                self._acknowledge(who, message.seq)  # the first acknowledgement was lost
            return None
        peer.task, peer.incarnation, peer.is_reachable = message.task, message.incarnation, True
        if question := peer.outbox.answers(message.re):
            peer.inbox.mark_answered(
                question
            )  # our answer has arrived: not before may the question be acknowledged again
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

    def _why_misdirected(self, message: Envelope, question: Message | None) -> str:
        """What of the message's contract is broken; "" if nothing is.  `question`: the open one that it answers."""
        body = message.body
        name, contract, is_answer = type(body).__name__, body.contract, not isinstance(body, Ack)
        if not contract.may_be_sent_by(message.task):
            return f"{name} from {message.task}"
        if not contract.may_be_sent_to(self.me.task):
            return f"{name} to {self.me.task}"
        if question is not None and is_answer and not isinstance(body, question.contract.answers):
            return f"{name} in answer to {type(question).__name__}"
        return ""

    def refuse(self, why: str) -> None:
        """Counts a message that breaks its contract: a bug of its sender's, which is no reason to stop here."""
        self.drop(why)

    def _why_dropped(self, message: Envelope) -> str:
        """Why nobody is to hear it, whatever it says; "" if it is to be heard."""
        return ""


class ServerEndpoint(Endpoint):
    """The end that others connect to; it knows each connection by a key, `who`."""

    def __init__(self, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.peers: dict[bytes, Peer] = {}  # in the order in which they first spoke
        self._parted: dict[bytes, Peer] = {}  # superseded by a later connection of their task, and sent nothing
        self._newest: dict[TaskId, int] = {}  # the highest incarnation that has spoken
        self._dead: dict[bytes, None] = {}  # the newest connections of processes that are known to be dead

    def receive(self) -> Received | None:
        """The next message that is news, or None when nothing waits."""
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
                peer = Peer(Outbox(self.me.incarnation))  # remembered below, once it has sent a valid message
            received = self._open_message(frames[0], who, peer)
            if received is None:
                continue
            self._parted.pop(who, None)
            self.peers[who] = peer
            self._newest[received.task] = received.incarnation
            return received
        return None

    def _why_dropped(self, message: Envelope) -> str:
        """Somebody of a later incarnation has spoken, on whatever connection."""
        return "an older incarnation" if message.incarnation < self._newest.get(message.task, 0) else ""

    def send_reliable(self, who: bytes, body: Message, re: int = 0) -> int:
        """Sends `body` until `who` acknowledges it; its sequence number."""
        peer = self.peers[who]
        seq = peer.outbox.add_message(body, re, self._clock.monotonic())
        self._send(who, seq, re, body)
        return seq

    def broadcast(self, body: Message, only: TaskId | None = None) -> int:
        """Sends `body` reliably to all who may receive it, or to one task `only`; never to an older incarnation.  To how many."""
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
        """`body`, that very object, is sent to nobody again."""
        for peer in self.peers.values():
            peer.outbox.withdraw(body)

    def send(self, who: bytes, body: Message, re: int = 0) -> None:
        """Sends `body` once."""
        if re and (peer := self.peers.get(who)) is not None:
            peer.inbox.mark_answered(re)
        self._send(who, 0, re, body)

    def send_to_each(self, receivers: Iterable[bytes], body: Message) -> None:
        """Sends `body` once to each; it is put into bytes a single time."""
        data, checked = self._envelope(0, 0, body), set[str]()
        for who in receivers:
            peer = self.peers[who]
            if peer.task is not None and peer.task.role not in checked:
                self._envelope(0, 0, body, peer.task)  # who may not be sent it is a bug
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
        """Sends again what is due."""
        now_s, is_apart = self._clock.monotonic(), False
        for who, peer in self.peers.items():
            for seq, re, body in peer.outbox.due(now_s):
                self._send(who, seq, re, body)
            is_apart = is_apart or not peer.is_reachable
        if is_apart:
            self._forget_superseded()

    def _forget_superseded(self) -> None:
        """Drops connections that are gone where their task has spoken on a later one.

        Two launches may ask for one task, and the first come back: it goes on where it was, with what it has said, and was told, already.
        """
        later: set[TaskId | None] = set()
        for who, peer in reversed(list(self.peers.items())):
            if peer.task in later and not peer.is_reachable:
                del self.peers[who]
                if peer.task != COMMAND_LINE:  # a process for each question
                    self._parted[who] = peer
            later.add(peer.task)
        while len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def forget(self, task: TaskId, up_to_incarnation: int) -> None:
        """Drops the peers of `task` that are dead, with whatever was still to be sent to them."""
        for peers in (self.peers, self._parted):
            for who in [w for w, p in peers.items() if p.task == task and p.incarnation <= up_to_incarnation]:
                del peers[who]

    def forget_others(self, who: bytes) -> None:
        """Who speaks as `who` has come in the place of a process that is dead: what that sends is not heard any more.

        What was sent to both of them was for that one, and is taken back.
        """
        self.peers[who].outbox.drop_messages()
        task = self.peers[who].task
        for peers in (self.peers, self._parted):
            for other in [other for other, peer in peers.items() if peer.task == task and other != who]:
                del peers[other]
                self._dead[other] = None
        while len(self._dead) > DEAD_MAX:
            del self._dead[next(iter(self._dead))]

    def unsaid(self, task: TaskId) -> int:
        """How many messages the peers of `task` have not acknowledged."""
        return sum(len(p.outbox) for p in self.peers.values() if p.task == task)


class ClientEndpoint(Endpoint):
    """The end that connects; its server may not be there yet, and may come and go."""

    def __init__(self, me: Address, clock: Clock) -> None:
        super().__init__(me, clock)
        self.peer = Peer(Outbox(me.incarnation))
        self.connections = 0  # rises with every (re)connection; the owner then introduces itself again
        self.wants_tick = False  # there is something to send as soon as the owner has introduced itself

    @property
    def is_pending(self) -> bool:
        """Whether `resend_due` may have something to do although nothing has come."""
        return self.wants_tick or len(self.peer.outbox) > 0

    @abstractmethod
    def _new_connections(self) -> int:
        """How many connections were made since the last call."""

    def receive(self) -> Received | None:
        """The next message that is news, or None when nothing waits."""
        while (frames := self._take()) is not None:
            if len(frames) != 1:
                self.drop("wrong number of frames")
                continue
            received = self._open_message(frames[0], b"", self.peer)
            if received is not None:
                return received
        return None

    def send_reliable(self, body: Message, re: int = 0) -> int:
        """Sends `body` until the server acknowledges it; its sequence number."""
        seq = self.peer.outbox.add_message(body, re, self._clock.monotonic())
        self._send(seq, re, body)
        return seq

    def send(self, body: Message, re: int = 0) -> bool:
        """Sends `body` once; False if nobody is connected."""
        self.peer.inbox.mark_answered(re)
        return self._send(0, re, body)

    def _acknowledge(self, who: bytes, seq: int) -> None:
        self.send(Ack(), re=seq)

    def _send(self, seq: int, re: int, body: Message) -> bool:
        return self._put([self._envelope(seq, re, body)]) is Put.TAKEN

    def resend_due(self) -> bool:
        """Sends again what is due.  True after a new connection: introduce yourself (Hello, plans) first.

        What the server has not acknowledged on an earlier connection follows with the next call, which Waiter.wait
        does not delay.
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
