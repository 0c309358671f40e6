"""Every message class of messages.py survives encoding and decoding, and nothing else gets in."""

from __future__ import annotations

import enum
import functools
import typing

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import TRAINER, TaskId
from procsv.base.journal.entries import SessionLost
from procsv.ipc.messaging.checkpoint_messages import Rejected
from procsv.ipc.messaging.message import SERVICE, Message
from procsv.ipc.messaging.messages import MESSAGE_BYTES_MAX, PROTOCOL, Envelope, decode, encode
from procsv.ipc.messaging.summary_messages import Records
from procsv.ipc.messaging.watchdog_messages import Loaded, Note

BODIES: tuple[type[Message], ...] = tuple(Message.__subclasses__())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
Built = typing.TypeVar("Built", bound=msgspec.Struct)


def values(kind: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Draw values of the type of a message's field."""
    simple = {
        str: TEXT,
        int: INTS,
        float: FLOATS,
        bool: st.booleans(),
        bytes: st.binary(max_size=50),
        type(None): st.none(),
        TaskId: st.sampled_from([TRAINER, TaskId("worker", 3)]),
    }
    if kind in simple:
        return simple[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is typing.Annotated:
        limits = {"min_value": args[1].ge, "max_value": args[1].le}
        return st.integers(**limits) if args[0] is int else st.floats(**limits)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=4)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    return st.one_of([values(arg) for arg in args])


@functools.cache  # hypothesis examines each new strategy, and there are hundreds
def structs(kind: type[Built]) -> st.SearchStrategy[Built]:
    return st.builds(kind, **{field.name: values(field.type) for field in msgspec.structs.fields(kind)})


ANY_BODY = st.one_of([structs(kind) for kind in BODIES])


def envelope(body: typing.Any, **changes: typing.Any) -> Envelope:
    fields: dict[str, typing.Any] = {
        "protocol": PROTOCOL,
        "run": "r",
        "task": TRAINER,
        "incarnation": 1,
        "seq": 2,
        "re": 3,
    }
    return Envelope(**(fields | changes), body=body)


@pytest.mark.parametrize("kind", BODIES)
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_is_decoded_as_it_was_encoded(kind: type[Message], data: st.DataObject) -> None:
    said = envelope(data.draw(structs(kind)), run=data.draw(TEXT), incarnation=data.draw(st.integers(0, 2**63)))
    assert decode(encode(said)) == said


@pytest.mark.parametrize("kind", BODIES)
def test_every_message_states_its_contract(kind: type[Message]) -> None:
    contract = kind.contract
    assert kind.__doc__
    assert contract.senders
    assert contract.receivers
    for answer in contract.answers:
        assert answer.contract.senders & (contract.receivers | SERVICE), "who is asked answers"
        assert contract.senders <= answer.contract.receivers


def test_text_that_is_not_utf_8_arrives_unchanged() -> None:
    said = envelope(Note(SessionLost(error="no such file: a\udcff", step=1)))
    assert decode(encode(said)) == said

    records = envelope(Records("w\udc80", 1, (b"\xff\x00",), {3: "p"}))
    assert decode(encode(records)) == records


def test_a_message_over_the_limit_is_our_bug_to_send_and_the_peers_error_to_have_sent() -> None:
    with pytest.raises(ProcsvBug, match="Rejected of"):
        encode(envelope(Rejected("x" * MESSAGE_BYTES_MAX, "")))
    with pytest.raises(PeerError, match="the limit is"):
        decode(b"\0" * (MESSAGE_BYTES_MAX + 1))


def test_a_message_of_exactly_the_limit_travels() -> None:
    empty = len(encode(envelope(Rejected("x" * 2**20, ""))))
    data = encode(envelope(Rejected("x" * (2**20 + MESSAGE_BYTES_MAX - empty), "")))
    assert len(data) == MESSAGE_BYTES_MAX
    decode(data)


def test_another_protocol_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(PeerError, match=f"protocol {PROTOCOL + 1}; this is protocol {PROTOCOL}"):
        decode(encode(envelope(Loaded(), protocol=PROTOCOL + 1)))


@pytest.mark.parametrize("field", ["incarnation", "seq", "re"])
def test_a_negative_number_is_not_a_message(field: str) -> None:
    with pytest.raises(PeerError, match="below zero"):
        decode(encode(envelope(Loaded(), **{field: -1})))


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x91" * 5000)  # nested deeper than the stack
@example(b"\x97\x01\xa1r\xa1t\x01\x01\x00\xdf\xff\xff\xff\xff")  # a map that claims 4 billion entries
@example(b"\x97\x01\xa1\xff\xa1t\x01\x01\x00\x80")  # text that is not UTF-8
@settings(max_examples=1000)
def test_arbitrary_bytes_raise_a_peer_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode(data)


@given(st.data())
@settings(max_examples=150)
def test_a_message_damaged_in_transit_is_a_message_or_a_peer_error(data: st.DataObject) -> None:
    whole = bytearray(encode(envelope(data.draw(ANY_BODY))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        received = decode(damaged)
    except PeerError:
        return
    assert isinstance(received.body, BODIES)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | INTS | FLOATS | TEXT | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    )
)
def test_other_messagepack_is_a_peer_error(value: object) -> None:
    with pytest.raises(PeerError):
        decode(msgspec.msgpack.encode(value))
