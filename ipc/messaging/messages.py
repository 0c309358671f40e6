"""Encode and decode the messages between processes of a run: an envelope with a body.

msgspec encodes them as MessagePack: size-limited and versioned, never pickle.  The files beside
this one declare the bodies, grouped by who talks to whom.  To add a message, add a class with its
contract to one of these files, send it from its sender and handle it in its receiver.  scripts/docs
makes docs/messages.md from these files.

A message with `seq` > 0 in its envelope is *reliable*.  Its sender repeats it until the receiver
acknowledges it: with an Ack, or with an answer whose envelope names it in `re`.  A receiver may get
it twice, and drops a message that it has already handled.  A message with `seq` 0 is sent once and
may be lost.
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

# A receiver refuses a message of another protocol, with both numbers in the error.  Raise the number when a field is
# removed or changes its meaning: after an upgrade during a run, services of the earlier version still run, and the two
# versions would misunderstand each other.  A new message needs no new number.
PROTOCOL = 3
MESSAGE_BYTES_MAX = 8 * 2**20  # longer messages are not sent, and dropped on arrival (see zmq_transport.CUT_OFF_BYTES)


class Ack(Message, frozen=True):
    """Acknowledges that the reliable message number `re` (in the envelope) has taken effect."""

    contract = Contract(ANY, ANY, is_reliable=False)


class Hello(Message, frozen=True):
    """Introduces a process: the first message on a new connection.

    A service sends its news (Durable, SaveFailed, …) to every peer that has sent Hello.
    """

    contract = Contract(PROGRAM | WATCHDOG, WATCHDOG | SERVICE)

    pid: int


if TYPE_CHECKING:
    Body = Message
else:  # the decoder distinguishes the classes by their names
    Body = Union[tuple(Message.__subclasses__())]  # noqa: UP007  there is no other way to spell a union of a list


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The wrapper in which every message travels."""

    protocol: int
    run: str  # run id; a message from another run is dropped and counted
    task: TaskId  # the sender
    incarnation: int  # of the sender
    seq: int  # > 0: reliable, rising by one per sender and receiver
    re: int  # the seq that this answers or acknowledges; 0 if none
    body: Body


_decoder = msgspec.msgpack.Decoder(Envelope)
_body_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Body)


def encode(envelope: Envelope) -> bytes:
    """Returns the bytes of one message.

    ProcsvBug if there are more than MESSAGE_BYTES_MAX, because large data must travel in files.
    """
    data = encode_msgpack(envelope)
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProcsvBug(f"{type(envelope.body).__name__} of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    return data


def decode(data: bytes) -> Envelope:
    """Returns the message in `data`; PeerError if it is not one of ours."""
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
    """Returns the bytes of a body alone, to forward it inside another message."""
    return encode_msgpack(body)


def decode_body(data: bytes) -> Message:
    """Returns the body in `data`; PeerError if it is not one of ours."""
    try:
        return decode_msgpack(data, _body_decoder)
    except msgspec.DecodeError as error:
        raise PeerError(f"not a message: {error}") from error
