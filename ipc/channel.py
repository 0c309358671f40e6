"""The one gate to ZeroMQ: a server (ROUTER) and its clients (DEALER) over unix sockets.

Called by every process's main loop; one thread owns a channel.  Sends never block; what cannot be sent now
is kept by the outbox and said again on reconnection, or after RESEND_S.  Never binds a path that something
else than a socket of ours occupies, and never outside the machine.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from procsv.ipc.clock import Clock
from procsv.ipc.codec import MESSAGE_BYTES_MAX, decode, encode
from procsv.ipc.delivery import RESEND_S, Inbox, Outbox
from procsv.ipc.errors import PeerError, UserError
from procsv.ipc.messages import PROTOCOL, Ack, Body, Envelope, Message

QUEUE_MESSAGES_MAX = 10_000  # per connection inside ZeroMQ; beyond it a send fails and the outbox keeps it
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
LINGER_MS_AT_CLOSE = 1000


@dataclass(frozen=True, slots=True)
class Address:
    """Who speaks: run id, role and incarnation; the door checks the first, dedup uses the last."""

    run: str
    role: str
    incarnation: int


@dataclass(slots=True)
class Peer:
    """What is known of the other end of one connection."""

    outbox: Outbox = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    role: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that is news: from whom (`who`, the key to answer with), and what."""

    who: bytes
    role: str
    incarnation: int
    seq: int
    re: int
    body: Body
    answers: Message | None  # the reliable message of ours that `re` names, if it was still open


def _options(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.RCVTIMEO, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)


class _Channel:
    """What server and client share: encoding, acknowledgement, counting of what was dropped."""

    def __init__(self, me: Address, clock: Clock, socket: zmq.Socket[bytes]) -> None:
        self.me = me
        self.dropped: Counter[str] = Counter()  # why -> how many messages; shown in the journal at the end
        self._clock = clock
        self._socket = socket

    def _envelope(self, seq: int, re: int, body: Message) -> bytes:
        return encode(Envelope(PROTOCOL, self.me.run, self.me.role, self.me.incarnation, seq, re, body))  # type: ignore[arg-type]

    def _send(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames)
        except (zmq.Again, zmq.ZMQError) as error:
            # EAGAIN: no connection, or its queue is full.  EHOSTUNREACH: the peer is gone.  The outbox says it again.
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def _open(self, data: bytes, who: bytes, peer: Peer) -> Heard | None:
        """Checks a message at the door, once: version, run, incarnation, repetition."""
        try:
            message = decode(data)
        except PeerError as error:
            self.dropped[str(error)[:60]] += 1
            return None
        if message.run != self.me.run and message.role != "cli":
            self.dropped["another run"] += 1
            return None
        news = peer.inbox.is_news(message.incarnation, message.seq)
        if not news:
            self.dropped["seen before"] += 1
            if message.seq and peer.inbox.is_settled(message.incarnation, message.seq):
                self._acknowledge(who, message.seq)  # the first acknowledgement was lost
            return None
        peer.role, peer.incarnation = message.role, message.incarnation
        answered = peer.outbox.acknowledge(message.re) if message.re else None
        return Heard(who, message.role, message.incarnation, message.seq, message.re, message.body, answered)

    def _acknowledge(self, who: bytes, seq: int) -> None:
        raise NotImplementedError

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._socket


class Server(_Channel):
    """A ROUTER bound to a unix socket in a directory of ours."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path, me: Address, clock: Clock) -> None:
        socket = context.socket(zmq.ROUTER)
        super().__init__(me, clock, socket)
        _options(socket)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        self.path = path
        self.peers: dict[bytes, Peer] = {}
        self._bind()

    def _bind(self) -> None:
        """Binds, having made sure that the bind, which deletes whatever is there, deletes nothing of value."""
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise UserError(f"{self.path} is in the way: it is not a socket; move it away", exit_code=73)
        except FileNotFoundError:
            pass
        before = os.umask(0o177)
        try:
            self._socket.bind(f"ipc://{self.path}")
        finally:
            os.umask(before)

    def receive(self) -> Heard | None:
        """The next message that is news, or None when nothing waits."""
        while True:
            try:
                who, *frames = self._socket.recv_multipart()
            except zmq.Again:
                return None
            if len(frames) != 1:
                self.dropped["wrong number of frames"] += 1
                continue
            peer = self.peers.get(who)
            if peer is None:
                peer = Peer()  # remembered below, once it has said something that makes sense
            heard = self._open(frames[0], who, peer)
            if heard is None:
                continue
            self.peers[who] = peer
            return heard

    def tell(self, who: bytes, body: Message, re: int = 0) -> int:
        """Says `body` until `who` acknowledges it.  Its sequence number."""
        peer = self.peers[who]
        peer.inbox.settle(re)
        seq = peer.outbox.add(body, re, self._clock.monotonic())
        self._send([who, self._envelope(seq, re, body)])
        return seq

    def tell_all(self, body: Message, roles: Iterable[str]) -> None:
        """Says `body` to every peer of these roles, reliably; an older incarnation of a role is not told."""
        roles = set(roles)
        newest: dict[str, int] = {}
        for peer in self.peers.values():
            newest[peer.role] = max(newest.get(peer.role, 0), peer.incarnation)
        for who, peer in list(self.peers.items()):
            if peer.role in roles and peer.incarnation == newest[peer.role]:
                self.tell(who, body)

    def say(self, who: bytes, body: Message, re: int = 0) -> None:
        """Says `body` once."""
        if re and (peer := self.peers.get(who)) is not None:
            peer.inbox.settle(re)
        self._send([who, self._envelope(0, re, body)])

    def acknowledge(self, heard: Heard) -> None:
        """Tells the sender that `heard` has taken effect."""
        if heard.seq:
            self._acknowledge(heard.who, heard.seq)

    def _acknowledge(self, who: bytes, seq: int) -> None:
        self.say(who, Ack(), re=seq)

    def tick(self) -> None:
        """Says again what is due."""
        now_s = self._clock.monotonic()
        for who, peer in self.peers.items():
            for seq, re, body in peer.outbox.due(now_s):
                self._send([who, self._envelope(seq, re, body)])

    def forget(self, role: str, up_to_incarnation: int) -> None:
        """Drops peers of `role` that are dead, with whatever was still to be said to them."""
        gone = [w for w, p in self.peers.items() if p.role == role and p.incarnation <= up_to_incarnation]
        for who in gone:
            del self.peers[who]

    def unsaid(self, role: str) -> int:
        """How many messages peers of `role` have not acknowledged."""
        return sum(len(p.outbox) for p in self.peers.values() if p.role == role)

    def is_in_place(self) -> bool:
        """False if somebody has deleted or replaced the socket file (temp sweepers do)."""
        try:
            return stat.S_ISSOCK(self.path.lstat().st_mode)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._socket.close(LINGER_MS_AT_CLOSE)
        self.path.unlink(missing_ok=True)


class Client(_Channel):
    """A DEALER connected to a server; it may not be there yet, and may come and go."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path, me: Address, clock: Clock) -> None:
        socket = context.socket(zmq.DEALER)
        super().__init__(me, clock, socket)
        _options(socket)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        # The nonce: a server ignores a second connection of an identity it still holds.
        socket.setsockopt(zmq.IDENTITY, f"{me.role}.{me.incarnation}.{secrets.token_hex(4)}".encode())
        self.path = path
        self.peer = Peer()
        self.connections = 0  # rises with every (re)connection; the owner then introduces itself again
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(f"ipc://{path}")

    def receive(self) -> Heard | None:
        """The next message that is news, or None when nothing waits."""
        while True:
            try:
                frames = self._socket.recv_multipart()
            except zmq.Again:
                return None
            if len(frames) != 1:
                self.dropped["wrong number of frames"] += 1
                continue
            heard = self._open(frames[0], b"", self.peer)
            if heard is not None:
                return heard

    def tell(self, body: Message, re: int = 0) -> int:
        """Says `body` until the server acknowledges it.  Its sequence number."""
        self.peer.inbox.settle(re)
        seq = self.peer.outbox.add(body, re, self._clock.monotonic())
        self._send([self._envelope(seq, re, body)])
        return seq

    def say(self, body: Message, re: int = 0) -> bool:
        """Says `body` once; False if nobody is connected."""
        self.peer.inbox.settle(re)
        return self._send([self._envelope(0, re, body)])

    def acknowledge(self, heard: Heard) -> None:
        if heard.seq:
            self._acknowledge(b"", heard.seq)

    def _acknowledge(self, who: bytes, seq: int) -> None:
        self.say(Ack(), re=seq)

    def tick(self) -> bool:
        """Says again what is due.  True after a new connection: introduce yourself (Hello, plans) first."""
        fresh = False
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            self.connections += 1
            fresh = True
        for seq, re, body in self.peer.outbox.due(self._clock.monotonic(), all_of_them=fresh):
            self._send([self._envelope(seq, re, body)])
        return fresh

    def close(self, linger_ms: int = LINGER_MS_AT_CLOSE) -> None:
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)


class Waiter:
    """Waits on channels and file descriptors in one place."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._owner: dict[object, object] = {}

    def add(self, thing: Server | Client | int) -> None:
        if isinstance(thing, int):
            self._register(thing, thing)
            return
        self._register(thing.socket, thing)
        if isinstance(thing, Client):
            self._register(thing.monitor, thing)

    def remove(self, thing: Server | Client | int) -> None:
        for key in [k for k, owner in self._owner.items() if owner is thing or owner == thing]:
            self._poller.unregister(key)
            del self._owner[key]

    def _register(self, key: zmq.Socket[bytes] | int, owner: object) -> None:
        self._poller.register(key, zmq.POLLIN)
        self._owner[key] = owner

    def wait(self, timeout_s: float) -> list[object]:
        """The things with news, each once; empty after `timeout_s`."""
        ready = self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))
        found: list[object] = []
        for key, _ in ready:
            owner = self._owner[key]
            if owner not in found:
                found.append(owner)
        return found


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    return zmq.Context(io_threads=1)


__all__ = ["RESEND_S", "Address", "Client", "Heard", "Peer", "Server", "Waiter", "new_context"]
