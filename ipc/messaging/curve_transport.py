"""ZeroMQ over TCP between machines, for holders of the run's keys alone.

Used by the watchdogs of a run on several machines; in a run of one machine nothing listens on TCP.  CURVE encrypts and authenticates:
each member has a key of its own, by which the server knows who speaks, and a client knows the server's.  Strangers get no further than
the handshake, and are counted (door.py).  The keys follow from a secret which all launches of a run have (`derive_keys`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Mapping

import msgspec
import zmq
from zmq.utils import z85

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE
from procsv.ipc.messaging.door import Door
from procsv.ipc.messaging.endpoint import Address, ServerEndpoint
from procsv.ipc.messaging.messages import Envelope
from procsv.ipc.messaging.zmq_transport import Client, Context, ZmqEndpoint

DEAD_AFTER_MS = 10_000  # a peer that answers nothing for so long is disconnected, and connected again
PING_MS = 2_000
CONNECT_MS = 1_000  # then it is tried again: the system would ask ever more rarely at a door that is shut
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


class TcpServer(ZmqEndpoint, ServerEndpoint):
    """A ROUTER on a TCP port of this machine."""

    def __init__(
        self,
        context: Context,
        port: int,
        keys: KeyPair,
        members: Mapping[str, str],
        me: Address,
        clock: Clock,
    ) -> None:
        """`port` 0: any that is free.  `members`: the public keys of all who may come in, and as whom each speaks.

        UserError if the port cannot be had.
        """
        super().__init__(me, clock)
        self._speaker = ""  # who has sent the message that was taken last, by its key
        self._open_socket(context, zmq.ROUTER)
        try:
            self._door = Door(context, self.socket, port, keys.secret, members)
        except BaseException:
            self.socket.close(0)
            raise
        self.port = self._door.port

    @property
    def refused(self) -> int:
        """Strangers, too."""
        return super().refused + self._door.strangers

    def _receive(self) -> list[bytes]:
        frames = self.socket.recv_multipart(copy=False)
        self._speaker = str(frames[-1].get("User-Id"))
        return [frame.bytes for frame in frames]

    def _why_dropped(self, message: Envelope) -> str:
        """A member speaks for itself, or asks for the run that it is to be a member of."""
        if message.task != COMMAND_LINE and str(message.task) != self._speaker:
            return f"{self._speaker} speaks as {message.task}"
        return super()._why_dropped(message)

    def close(self) -> None:
        self._door.close()
        self.socket.close(1000)


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


def secure_client(client: zmq.Socket[bytes], keys: KeyPair, server_key: str) -> None:
    """Sets what a DEALER needs before it connects."""
    client.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    client.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    client.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    client.setsockopt(zmq.IPV6, socket.has_dualstack_ipv6())
    client.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
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
    members: str  # a secret, from which the key pair of each member follows
    fingerprint: str  # tells one secret from another, and says nothing of it; "": the secret is in the term's file

    @classmethod
    def new(cls) -> RunKeys:
        return cls(KeyPair.new(), secrets.token_hex(KEY_BYTES), "")

    def of_members(self, count: int) -> dict[str, str]:
        """Their public keys, and who each of them is."""
        return {member_keys(self.members, number).public: f"member.{number}" for number in range(1, count + 1)}

    def __repr__(self) -> str:
        return f"RunKeys({self.fingerprint!r})"  # keys belong in no log


def member_keys(members: str, number: int) -> KeyPair:
    """Those of the launch to which the scheduler has given that place, whichever task it has by now.  `members`: as of RunKeys."""
    return _pair(_expand(members.encode(), f"curve key of member {number}", ""))


def derive_keys(secret: bytes, scheduler: str) -> RunKeys:
    """`scheduler`: the identity of this start of the job, which all its launches know.

    HKDF with SHA-256 (RFC 5869).  Each key has its own label, and each start of a job has its own keys.  32 bytes of
    it are an X25519 key as they are: the curve's functions clamp what they are given.
    """
    key = hmac.digest(SALT, secret, hashlib.sha256)
    return RunKeys(
        _pair(_expand(key, "curve key of the coordinator", scheduler)),
        _expand(key, "curve keys of the members", scheduler).hex(),
        _expand(key, "fingerprint", scheduler)[:FINGERPRINT_BYTES].hex(),
    )


def _expand(key: bytes, label: str, scheduler: str) -> bytes:
    """The first block of HKDF-Expand, which is all that is needed.  No label has a zero byte, so no two are one with what follows."""
    info = label.encode() + b"\0" + scheduler.encode(errors="surrogateescape")
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def _pair(secret: bytes) -> KeyPair:
    text = z85.encode(secret)
    return KeyPair(zmq.curve_public(text).decode(), text.decode())


# -- the name by which other machines find this one --------------------------------------------------------------------
DOCUMENTATION_ADDRESS = (
    "192.0.2.1",
    9,
)  # nobody has it (RFC 5737), and nothing is sent: only the way there is asked for


def own_host() -> str:
    """What PROCSV_HOST says; else this machine's name, if that is one that can be looked up, or the address of its way out."""
    told = os.environ.get("PROCSV_HOST", "")
    return told or (name if can_be_found(name := socket.gethostname()) else _own_address())


def can_be_found(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(DOCUMENTATION_ADDRESS)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
