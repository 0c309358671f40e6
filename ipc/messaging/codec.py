"""Bytes of a message and back.  msgpack by msgspec; size-limited, versioned, never pickle.

Called by endpoint.py alone.
"""

from __future__ import annotations

import msgspec

from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.json_data import escape_surrogates
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import PROTOCOL, Body, Envelope

MESSAGE_BYTES_MAX = 8 * 2**20  # a longer one is never sent, and a peer that sends one is cut off

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_body_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Body)


def encode(envelope: Envelope) -> bytes:
    """The bytes of one message.  Larger than MESSAGE_BYTES_MAX is our own bug: big things go by file."""
    try:
        data = _encoder.encode(envelope)
    except UnicodeEncodeError:  # a file name that is not UTF-8, say in the text of an error
        data = _encoder.encode(escape_surrogates(msgspec.to_builtins(envelope, builtin_types=(bytes,))))
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProcsvBug(f"{type(envelope.body).__name__} of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    return data


def decode(data: bytes) -> Envelope:
    """The message in `data`; PeerError if it is not one of ours."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise PeerError(f"message of {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    try:
        envelope = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not a message: {error}") from error
    if envelope.protocol != PROTOCOL:
        raise PeerError(f"message of protocol {envelope.protocol}; this is protocol {PROTOCOL}")
    if min(envelope.incarnation, envelope.seq, envelope.re) < 0:
        raise PeerError("not a message: a number below zero")
    return envelope


def encode_body(body: Message) -> bytes:
    """The bytes of a body alone, for whoever passes it on in a message of its own."""
    return _encoder.encode(body)


def decode_body(data: bytes) -> Message:
    """The body in `data`; PeerError if it is none of ours."""
    try:
        return _body_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not a message: {error}") from error
