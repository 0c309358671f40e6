"""Carry messages between machines by ZeroMQ over TCP, only for holders of the run's keys.

The watchdogs of a run on several machines use it; a run on one machine listens on no TCP port.
CURVE encrypts and authenticates.  Each member has its own key, so the server knows who sends a
message, and each client knows the server's key.  Strangers fail in the handshake and are counted
(door.py).  All keys are derived from a secret that the launches of a run share (`derive_keys`).
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

DEAD_AFTER_MS = 10_000  # a connection whose peer is silent for this long is closed, and the client connects again
PING_MS = 2_000
# An attempt to connect ends after this long, and a new one begins.  Within one attempt, the kernel would wait longer and
# longer between its requests.
CONNECT_MS = 1_000
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
        return f"KeyPair({self.public!r})"  # the secret must not appear in a log


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
        """`port`: 0 for any free port.  `members`: public key -> the member that has it.

        UserError if the port is not available.
        """
        super().__init__(me, clock)
        self._speaker = ""  # the member whose key the last message came with
        self._open_socket(context, zmq.ROUTER)
        try:
            self._door = Door(context, self.socket, port, keys.secret, members)
        except BaseException:
            self.socket.close(0)
            raise
        self.port = self._door.port

    @property
    def refused(self) -> int:
        """How many messages and connections were refused, strangers included."""
        return super().refused + self._door.strangers

    def _receive(self) -> list[bytes]:
        frames = self.socket.recv_multipart(copy=False)
        self._speaker = str(frames[-1].get("User-Id"))
        return [frame.bytes for frame in frames]

    def _why_dropped(self, message: Envelope) -> str:
        """Returns why to drop a message; "" to accept it.

        Drops a message that a member sends in another member's name.  A launch that does not know
        the run yet asks in the command line's name, with any member's key.
        """
        if message.task != COMMAND_LINE and str(message.task) != self._speaker:
            return f"{self._speaker} speaks as {message.task}"
        return super()._why_dropped(message)

    def close(self) -> None:
        self._door.close()
        self.socket.close(1000)


class TcpClient(Client):
    """A DEALER connected to the coordinator."""

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
    # A machine that is gone closes no connection: ZeroMQ's pings find that out, and the client connects again.
    # Only the client pings; if the server did, too, each member would cost it twice as many packets.  The client's
    # pings carry the silence after which the server closes the connection (HEARTBEAT_TTL).
    client.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
    client.setsockopt(zmq.HEARTBEAT_TIMEOUT, DEAD_AFTER_MS)
    client.setsockopt(zmq.HEARTBEAT_TTL, DEAD_AFTER_MS)


def port_from_environment() -> int:
    """Returns the coordinator's port from the environment; 0 for any."""
    text = os.environ.get("PROCSV_PORT", "")
    if text and not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise UserError(f"PROCSV_PORT={text} is not a port; give a number from 1 to 65535")
    return int(text or 0)


def told_state_port() -> int:
    """Returns the port for fetching snapshots: one above the coordinator's port.

    0, for any port, if the environment does not set the coordinator's port, or sets the highest one.
    """
    port = port_from_environment()
    return port + 1 if 0 < port < 65535 else 0


class RunKeys(msgspec.Struct, frozen=True):
    """The keys of a run.

    If the launches share a secret, each launch in one start of a job derives the same keys from it.
    Then they need not exchange keys.
    """

    coordinator: KeyPair
    members: str  # a secret from which each member's key pair is derived
    fingerprint: str  # distinguishes secrets without revealing them; "": the secret is in the term's file

    @classmethod
    def new(cls) -> RunKeys:
        return cls(KeyPair.new(), secrets.token_hex(KEY_BYTES), "")

    def of_members(self, count: int) -> dict[str, str]:
        """Returns public key -> member, for `count` members."""
        return {member_keys(self.members, number).public: f"member.{number}" for number in range(1, count + 1)}

    def __repr__(self) -> str:
        return f"RunKeys({self.fingerprint!r})"  # keys must not appear in a log


def member_keys(members: str, number: int) -> KeyPair:
    """Derives the key pair of the launch with rank `number`, whichever task it has by now.

    `members`: as in RunKeys.
    """
    return _pair(_expand(members.encode(), f"curve key of member {number}", ""))


def derive_keys(secret: bytes, scheduler: str) -> RunKeys:
    """Derives the keys of a run by HKDF with SHA-256 (RFC 5869).

    `scheduler`: the identity of this start of the job, which all its launches know; it gives each
    start its own keys.  Any 32 bytes are a valid X25519 key, because the curve's functions clamp
    their input.
    """
    key = hmac.digest(SALT, secret, hashlib.sha256)
    return RunKeys(
        _pair(_expand(key, "curve key of the coordinator", scheduler)),
        _expand(key, "curve keys of the members", scheduler).hex(),
        _expand(key, "fingerprint", scheduler)[:FINGERPRINT_BYTES].hex(),
    )


def _expand(key: bytes, label: str, scheduler: str) -> bytes:
    """Returns the first block of HKDF-Expand, which is enough here.

    A zero byte separates the label from `scheduler`.  No label contains a zero byte, so two
    different pairs never give the same input.
    """
    info = label.encode() + b"\0" + scheduler.encode(errors="surrogateescape")
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def _pair(secret: bytes) -> KeyPair:
    text = z85.encode(secret)
    return KeyPair(zmq.curve_public(text).decode(), text.decode())


# -- the name by which other machines find this one --------------------------------------------------------------------
# No machine has this address (RFC 5737), and nothing is sent to it; connecting a socket to it only looks up the route.
DOCUMENTATION_ADDRESS = ("192.0.2.1", 9)


def own_host() -> str:
    """Returns the name or address under which other machines find this one.

    That is PROCSV_HOST if it is set, otherwise this machine's name if it resolves, otherwise the
    address of its default route.
    """
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
