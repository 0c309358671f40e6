"""ZeroMQ over TCP between machines, for holders of the run's keys alone.

Used by the watchdogs of a run on several machines; in a run of one machine nothing listens on TCP.  CURVE encrypts and authenticates:
the server answers to one client key, which the members share, and a client to the server's.  Strangers get no further than the
handshake, and are counted.  The keys follow from a secret which all launches of a run have (`derive_keys`).
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket

import msgspec
import zmq
from zmq.utils import z85

from procsv.base import exit_codes
from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.ipc.messaging.endpoint import Address, ServerEndpoint
from procsv.ipc.messaging.zmq_transport import Client, Context, ZmqEndpoint

ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may come in (its RFC 27)
ZAP_FRAMES = 7  # of a question about a CURVE key: version, request, domain, address, identity, mechanism, key
DEAD_AFTER_MS = 10_000  # a peer that answers nothing for so long is disconnected, and connected again
PING_MS = 2_000
SALT = b"procsv: launches of one run, version 1"
KEY_BYTES = 32
FINGERPRINT_BYTES = 8


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, as 40 characters of Z85 each."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"  # the secret belongs in no log


class Door:
    """Answers ZeroMQ's question who may come in to the sockets of a context: whoever has the one client key."""

    def __init__(self, context: Context, client_key: str) -> None:
        """To be made before the socket: who comes before it is there is let in unasked."""
        self._client_key = z85.decode(client_key)
        self.zap = context.socket(zmq.REP)
        self.zap.setsockopt(zmq.LINGER, 0)
        self.zap.bind(ZAP_ENDPOINT)

    def answer(self) -> int:
        """Lets in who has the key; how many others asked.  A handshake waits for this answer, and for nothing else of ours."""
        strangers = 0
        while self.zap.poll(0):
            asked = self.zap.recv_multipart()
            is_known = len(asked) == ZAP_FRAMES and asked[5] == b"CURVE" and asked[6] == self._client_key
            strangers += not is_known
            request = asked[1] if len(asked) > 1 else b""
            verdict = [b"200", b"", b"member", b""] if is_known else [b"400", b"", b"", b""]
            self.zap.send_multipart([b"1.0", request, *verdict])
        return strangers

    def close(self) -> None:
        self.zap.close(0)


class TcpServer(ZmqEndpoint, ServerEndpoint):
    """A ROUTER on a TCP port of this machine."""

    def __init__(
        self,
        context: Context,
        port: int,
        keys: KeyPair,
        client_key: str,
        me: Address,
        clock: Clock,
    ) -> None:
        """`port` 0: any that is free.  `client_key`: the public key of all who may come in.  UserError if the port is taken."""
        super().__init__(me, clock)
        self._door = Door(context, client_key)
        self._open_socket(context, zmq.ROUTER)
        try:
            self.port = bind_secure(self.socket, port, keys)
        except BaseException:
            self.close()
            raise

    @property
    def other_sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        return (self._door.zap,)

    def _take(self) -> list[bytes] | None:
        self._answer_strangers()
        return super()._take()

    def _answer_strangers(self) -> None:
        for _ in range(self._door.answer()):
            self.drop("a stranger's key")

    def close(self) -> None:
        self.socket.close(1000)
        self._door.close()


class TcpClient(Client):
    """A DEALER connected to the coordinator at the first of its addresses that answers."""

    def __init__(
        self,
        context: Context,
        address: str,
        keys: KeyPair,
        server_key: str,
        me: Address,
        clock: Clock,
    ) -> None:
        """`address`: host:port."""
        self._keys, self._server_key = keys, server_key
        super().__init__(context, f"tcp://{address}", me, clock)

    def _secure(self) -> None:
        secure_client(self.socket, self._keys, self._server_key)


def bind_secure(server: zmq.Socket[bytes], port: int, keys: KeyPair) -> int:
    """Binds a ROUTER to that port of all addresses, or with 0 to any that is free; which one.  UserError if it is taken."""
    server.setsockopt(zmq.ROUTER_MANDATORY, 1)
    server.setsockopt(zmq.ROUTER_HANDOVER, 1)  # else who has lost a connection that we still hold is ignored
    server.setsockopt(zmq.CURVE_SERVER, 1)
    server.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    server.setsockopt(zmq.ZAP_DOMAIN, b"procsv")
    server.setsockopt(zmq.IPV6, socket.has_dualstack_ipv6())
    try:
        server.bind(f"tcp://*:{port or '*'}")
    except zmq.ZMQError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UserError(
            f"port {port} of this machine is taken; see by whom with `ss -tlnp`, and name another in PROCSV_PORT",
            exit_codes.LOGDIR_UNUSABLE,
        ) from error
    return int(server.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def secure_client(client: zmq.Socket[bytes], keys: KeyPair, server_key: str) -> None:
    """Sets what a DEALER needs before it connects."""
    client.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    client.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    client.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    client.setsockopt(zmq.IPV6, socket.has_dualstack_ipv6())
    # A machine that is gone closes no connection: ZeroMQ finds that out, and the client connects again.  The client alone asks, or
    # each member would cost its coordinator twice as many packets; its question says after how long a silence the server lets go.
    client.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
    client.setsockopt(zmq.HEARTBEAT_TIMEOUT, DEAD_AFTER_MS)
    client.setsockopt(zmq.HEARTBEAT_TTL, DEAD_AFTER_MS)


def told_port() -> int:
    """The port that the environment names for the coordinator; 0: any."""
    text = os.environ.get("PROCSV_PORT", "")
    if text and not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise UserError(f"PROCSV_PORT={text} is no port; give a number from 1 to 65535")
    return int(text or 0)


def told_state_port() -> int:
    """The port on which other machines fetch snapshots: the one after the coordinator's own, if that is told; else 0: any."""
    port = told_port()
    return port + 1 if 0 < port < 65535 else 0


class RunKeys(msgspec.Struct, frozen=True):
    """What all launches of one start of a job know, by their secret: no key has to be handed from one to the other."""

    coordinator: KeyPair
    member: KeyPair  # all members have the same
    fingerprint: str  # tells one secret from another, and says nothing of it

    def __repr__(self) -> str:
        return f"RunKeys({self.fingerprint!r})"  # keys belong in no log


def derive_keys(secret: bytes, scheduler: str) -> RunKeys:
    """`scheduler`: the identity of this start of the job, which all its launches know.

    HKDF with SHA-256 (RFC 5869).  Each key has its own label, and each start of a job has its own keys.  32 bytes of
    it are an X25519 key as they are: the curve's functions clamp what they are given.
    """
    key = hmac.digest(SALT, secret, hashlib.sha256)
    return RunKeys(
        _pair(_expand(key, "curve key of the coordinator", scheduler)),
        _pair(_expand(key, "curve key of the members", scheduler)),
        _expand(key, "fingerprint", scheduler)[:FINGERPRINT_BYTES].hex(),
    )


def _expand(key: bytes, label: str, scheduler: str) -> bytes:
    """The first block of HKDF-Expand, which is all that is needed.  No label has a zero byte, so no two are one with what follows."""
    info = label.encode() + b"\0" + scheduler.encode(errors="surrogateescape")
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def _pair(secret: bytes) -> KeyPair:
    text = z85.encode(secret)
    return KeyPair(zmq.curve_public(text).decode(), text.decode())
