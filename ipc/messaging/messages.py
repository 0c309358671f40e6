"""Messages between two processes of a run: the envelope, the bodies that it may hold, and their bytes.

Encoded as msgpack by msgspec: size-limited, versioned, never pickle.  The bodies are declared beside this file, by who talks with
whom.  To add one, add a class with its contract there, and let its sender send it and its receiver handle it; docs/messages.md is made
from these files by scripts/docs.

A message with `seq` > 0 in its envelope is *reliable*: its sender repeats it until the receiver acknowledges it with Ack
or an answer (envelope `re`), so a receiver may see it twice and drops what it has already handled.  A message with `seq`
0 is sent once and may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec

from procsv.base.encoding import decode_msgpack, encode_msgpack
from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import TaskId
from procsv.ipc.messaging import (  # noqa: F401  their classes are bodies
    checkpoint_messages,
    member_messages,
    summary_messages,
    watchdog_messages,
)
from procsv.ipc.messaging.message import ANY, PROGRAM, SERVICE, WATCHDOG, Contract, Message

# A peer of another protocol is refused, with both numbers in the error.  Raise it when a field changes its meaning or goes, so
# that a service of another version, left by an upgrade in a running logdir, is not misunderstood; not for a new message.
PROTOCOL = 3
MESSAGE_BYTES_MAX = 8 * 2**20  # a longer one is never sent, and a peer that sends one is cut off


class Ack(Message, frozen=True):
    """Acknowledges the reliable message that the envelope's `re` names, once it has taken effect."""

    contract = Contract(ANY, ANY, is_reliable=False)


class Hello(Message, frozen=True):
    """Introduces a process: the first message on a new connection.

    A service sends its news (Durable, SaveFailed, …) to every peer that has said Hello.
    """

    contract = Contract(PROGRAM | WATCHDOG, WATCHDOG | SERVICE)

    pid: int


if TYPE_CHECKING:
    Body = Message
else:  # the decoder tells the classes apart by their names
    Body = Union[tuple(Message.__subclasses__())]  # noqa: UP007  there is no other way to spell a union of a list


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What every message travels in."""

    protocol: int
    run: str  # run id; a message of another run is dropped and counted
    task: TaskId  # the sender
    incarnation: int  # of the sender
    seq: int  # > 0: reliable, rising by one per sender and receiver
    re: int  # the seq that this answers or acknowledges; 0 if none
    body: Body


_decoder = msgspec.msgpack.Decoder(Envelope)
_body_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Body)


def encode(envelope: Envelope) -> bytes:
    """The bytes of one message.  Larger than MESSAGE_BYTES_MAX is our own bug: big things go by file."""
    data = encode_msgpack(envelope)
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProcsvBug(f"{type(envelope.body).__name__} of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    return data


def decode(data: bytes) -> Envelope:
    """The message in `data`; PeerError if it is not one of ours."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise PeerError(f"message of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    try:
        envelope = decode_msgpack(data, _decoder)
    except msgspec.DecodeError as error:
        raise PeerError(f"not a message: {error}") from error
    if envelope.protocol != PROTOCOL:
        raise PeerError(f"message of protocol {envelope.protocol}; this is protocol {PROTOCOL}")
    if min(envelope.incarnation, envelope.seq, envelope.re) < 0:
        raise PeerError("not a message: a number below zero")
    return envelope


def encode_body(body: Message) -> bytes:
    """The bytes of a body alone, to be forwarded inside another message."""
    return encode_msgpack(body)


def decode_body(data: bytes) -> Message:
    """The body in `data`; PeerError if it is none of ours."""
    try:
        return decode_msgpack(data, _body_decoder)
    except msgspec.DecodeError as error:
        raise PeerError(f"not a message: {error}") from error
