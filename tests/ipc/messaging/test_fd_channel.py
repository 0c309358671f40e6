"""The typed channel passes messages and open files over a real pair of sockets."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from procsv.base.identity import WATCHDOG
from procsv.ipc.messaging import fd_messages
from procsv.ipc.messaging.fd_channel import FILES_MAX, HEADER, MESSAGE_BYTES_MAX, FdChannel
from procsv.ipc.messaging.start import Start

DEADLINE_S = 60.0


class Said(msgspec.Struct, frozen=True, tag=True):
    text: str


class Counted(msgspec.Struct, frozen=True, tag=True):
    number: int


Word = Said | Counted
DECODER: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)
Channel = FdChannel[Word]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = FdChannel.pair(DECODER)
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """Return a bare socket and the channel at its other end."""
    one, other = socket.socketpair()
    channel = FdChannel(other, DECODER)
    yield one, channel
    one.close()
    channel.close()


def frame(message: Word, files: int = 0) -> bytes:
    data = msgspec.msgpack.encode(message)
    return HEADER.pack(len(data), files) + data


def take(channel: Channel) -> tuple[Word, list[int]]:
    received = channel.receive(waits=True)
    assert received is not None
    return received


def test_messages_arrive_unchanged_in_both_directions(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    assert other.receive() is None
    one.send(Said("hello"))
    other.send(Counted(1))
    assert (other.receive(), one.receive()) == ((Said("hello"), []), (Counted(1), []))
    assert (other.receive(), one.receive()) == (None, None)


def test_each_message_brings_its_own_files_and_children_do_not_inherit_them(
    ends: tuple[Channel, Channel], tmp_path: Path
) -> None:
    one, other = ends
    names = ["a", "b", "c"]
    for name in names:
        (tmp_path / name).write_text(name)
    given = [os.open(tmp_path / name, os.O_RDONLY) for name in names]
    one.send(Said("none"))
    one.send(Said("two"), given[:2])
    one.send(Said("one"), given[2:])
    for fd in given:
        os.close(fd)
    found = []
    for _ in names:
        word, files = take(other)
        found.append((word, [os.read(fd, 9).decode() for fd in files]))
        assert not any(os.get_inheritable(fd) for fd in files)
        for fd in files:
            os.close(fd)
    assert found == [(Said("none"), []), (Said("two"), ["a", "b"]), (Said("one"), ["c"])]


def test_a_partial_message_is_not_delivered_wherever_it_is_cut(raw: tuple[socket.socket, Channel]) -> None:
    end, channel = raw
    for byte in frame(Said("slow")):
        assert channel.receive() is None
        end.sendall(bytes([byte]))
    assert channel.receive() == (Said("slow"), [])


@pytest.mark.parametrize("waits", [True, False])
def test_a_message_longer_than_any_buffer_arrives_whole_with_its_file(
    ends: tuple[Channel, Channel], tmp_path: Path, waits: bool
) -> None:
    one, other = ends
    long = Said("x" * 3_000_000)
    with (tmp_path / "file").open("w") as file:
        sender = threading.Thread(target=one.send, args=(long, [file.fileno()]))
        sender.start()
        received = other.receive(waits)
        while received is None:
            received = other.receive(waits)
        sender.join(DEADLINE_S)
    assert received[0] == long
    (fd,) = received[1]
    assert os.fstat(fd).st_ino == (tmp_path / "file").stat().st_ino
    os.close(fd)


def test_a_message_whose_sending_is_interrupted_by_a_signal_arrives_whole(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    long, handled, found = Said("x" * 3_000_000), threading.Event(), list[Word]()
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())

    def interrupt_then_read() -> None:
        select.select([other.fd], [], [], DEADLINE_S)  # a part has arrived and stays unread
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        handled.wait(DEADLINE_S)
        found.append(take(other)[0])

    reader = threading.Thread(target=interrupt_then_read)
    reader.start()
    try:
        one.send(long)
    finally:
        one.close()  # a reader that waits for more than was sent sees the end
        reader.join(DEADLINE_S)
        signal.signal(signal.SIGUSR1, before)
    assert found == [long]


def test_unread_messages_are_there_for_the_next_holder_of_the_end(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(Said("first"))
    one.send(Said("second"))
    assert take(other) == (Said("first"), [])
    heir = FdChannel.inherited(os.dup(other.fd), DECODER)
    assert take(heir) == (Said("second"), [])
    assert not os.get_inheritable(heir.fd)
    heir.close()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("left", [b"", frame(Said("cut"))[:3], frame(Said("cut"))[:-1]], ids=["", "header", "message"])
def test_nothing_more_comes_from_a_closed_end(raw: tuple[socket.socket, Channel], left: bytes, waits: bool) -> None:
    end, channel = raw
    end.sendall(frame(Said("last")) + left)
    end.close()
    assert channel.receive(waits) == (Said("last"), [])
    for _ in range(2):
        with pytest.raises(EOFError):
            channel.receive(waits)


def test_an_end_that_closed_with_unread_messages_is_gone_like_any_other(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(Said("unread"))
    other.close()
    with pytest.raises(EOFError):  # the kernel calls it a reset connection
        one.receive()
    with pytest.raises(OSError, match="pipe"):
        one.send(Said("into the void"))


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(MESSAGE_BYTES_MAX + 1, 0),
        HEADER.pack(2, 0) + b"\xc1\xc1",
        HEADER.pack(1, 0) + msgspec.msgpack.encode(7),
        HEADER.pack(7, 0) + msgspec.msgpack.encode({"a": "b", "c": 1}),
    ],
    ids=["too long", "no MessagePack", "a number", "another struct"],
)
def test_an_invalid_message_ends_the_channel(raw: tuple[socket.socket, Channel], data: bytes) -> None:
    end, channel = raw
    end.sendall(data)
    with pytest.raises(EOFError):
        channel.receive()


def test_too_long_a_message_or_too_many_files_are_refused_before_a_byte_is_sent(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    with pytest.raises(OSError, match="bytes and 0 files"):
        one.send(Said("x" * MESSAGE_BYTES_MAX))
    with pytest.raises(OSError, match="files"):
        one.send(Said("many"), [one.fd] * (FILES_MAX + 1))
    assert other.receive() is None


def test_files_of_an_incomplete_message_are_closed_with_the_channel(
    raw: tuple[socket.socket, Channel],
) -> None:
    end, channel = raw
    reader, writer = os.pipe()
    socket.send_fds(end, [frame(Said("cut"), 1)[:-1]], [writer])
    os.close(writer)
    assert channel.receive() is None
    channel.close()
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "nobody has its other end"
    os.close(reader)
    assert channel.fd == -1


def test_a_process_without_free_descriptors_gets_a_clear_error(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(Said("with a file"), [one.fd])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError, match="no room"):
            other.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_arguments_that_are_not_utf8_arrive_unchanged() -> None:
    start = Start(
        task=WATCHDOG, run="r", incarnation=1, logdir="/l", run_dir="/r", shm_dir="/s", args=("caf\udce9", "é", "\n")
    )
    one, other = FdChannel.pair(fd_messages.OBSERVER_DECODER)
    one.send(fd_messages.Observe(start.text()))
    received = other.receive(waits=True)
    one.close()
    other.close()
    assert received is not None
    assert isinstance(received[0], fd_messages.Observe)
    assert Start.from_text(received[0].start) == start
