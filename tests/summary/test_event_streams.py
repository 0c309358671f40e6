"""A trainer's event streams have their own names, parcels and waits, before, during and between runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written
from procsv.training.runtime import event_backlog, event_streams
from procsv.training.runtime.event_streams import EventStreams
from tests.support.fake_clock import FakeClock

LARGE = bytes(event_backlog.BATCH_BYTES_MAX + 1)


class Streams(EventStreams):
    """Streams with a stopped clock and a service that answers on request."""

    def __init__(self, *dirs: Path) -> None:
        self.clock = FakeClock()
        super().__init__(self.clock)
        self.needs = 0
        self.on_need = self._count
        if dirs:
            self.attach_to_run(dirs[0], "3", *dirs[1:])

    def _count(self) -> None:
        self.needs += 1

    def said(self) -> list[Message]:
        return self.messages(self.clock.monotonic())

    def hear(self, writer: str, through: int, error: str = "") -> None:
        self.on_written(Written(writer, through, error))

    def opened(self, logdir: Path) -> str:
        """Open a stream that the service knows as 3-0."""
        name = self.open_stream(str(logdir), "")
        self.add_event(name, b"first")
        self.said()
        self.hear("3-0", 0)
        self.said()
        self.hear("3-0", 1)
        return name


def test_records_wait_for_the_start_of_a_run(tmp_path: Path) -> None:
    streams = Streams()
    name = streams.open_stream("logs", ".x")
    streams.add_event(name, b"a")
    assert streams.said() == []
    assert not streams.flush_stream(name, 30.0), "nobody is there: it is not waited for"
    assert streams.unwritten(name) == 1

    streams.attach_to_run(tmp_path, "7")
    assert streams.said() == [OpenWriter("7-0", str(Path("logs").absolute()), ".x")]


def test_streams_are_named_after_their_trainer_and_continue_side_by_side(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    for text in ("a", "b"):
        streams.add_event(streams.open_stream("/logs", ""), text.encode())

    assert streams.said() == [OpenWriter("3-0", "/logs", ""), OpenWriter("3-1", "/logs", "")]
    streams.hear("3-1", 0)
    assert streams.said() == [Records("3-1", 1, (b"b",), {})]


def test_the_sender_is_woken_only_when_there_is_something_to_send(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.open_stream("/logs", "")
    woken = streams.needs
    streams.add_event(name, b"a")
    assert streams.needs == woken + 1
    assert streams.next_due_s(0.0) == 0.0

    streams.said()
    streams.add_event(name, b"b")
    assert streams.needs == woken + 1, "the stream is being opened"
    assert streams.next_due_s(0.0) == 1.0


def test_a_large_record_is_in_a_parcel_until_it_is_written(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    streams.add_event(name, LARGE)
    parcel = tmp_path / "event.3-0.2"

    assert streams.said() == [Records("3-0", 2, (b"",), {2: str(parcel)})]
    assert parcel.read_bytes() == LARGE
    streams.hear("3-0", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_parcel_is_written_again_when_it_is_resent(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    streams.add_event(streams.opened(tmp_path), LARGE)
    streams.said()
    (parcel,) = tmp_path.iterdir()
    parcel.unlink()
    streams.clock.advance(1.0)

    assert len(streams.said()) == 1
    assert parcel.read_bytes() == LARGE


def test_a_parcel_goes_where_there_is_room_and_otherwise_by_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, spare = tmp_path / "none", tmp_path / "spare"
    spare.mkdir()
    streams = Streams(none, spare)
    streams.add_event(streams.opened(tmp_path), LARGE)
    assert streams.said() == [Records("3-0", 2, (b"",), {2: str(spare / "event.3-0.2")})]

    (spare / "event.3-0.2").unlink()
    spare.rmdir()
    streams.clock.advance(1.0)
    assert streams.said() == [Records("3-0", 2, (LARGE,), {})]

    monkeypatch.setattr(event_streams, "INLINE_BYTES_MAX", 10)
    streams.clock.advance(1.0)
    assert streams.said() == []
    none.mkdir()
    streams.clock.advance(1.0)
    assert streams.said() == [Records("3-0", 2, (b"",), {2: str(none / "event.3-0.2")})]


def test_flush_returns_when_the_records_are_written(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    streams.add_event(name, b"a")
    done: list[bool] = []
    waiting = threading.Thread(target=lambda: done.append(streams.flush_stream(name, 30.0)))
    waiting.start()
    streams.said()
    streams.hear("3-0", 2)
    waiting.join(30.0)

    assert done == [True]


def test_flush_gives_up_at_its_time_limit(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    streams.add_event(name, b"a")

    assert not streams.flush_stream(name, 0.01)
    assert streams.unwritten(name) == 1


def test_the_end_of_the_run_releases_all_waiters(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    streams.add_event(name, b"a")
    done: list[bool] = []
    waiting = threading.Thread(target=lambda: done.append(streams.flush_stream(name, 600.0)))
    waiting.start()
    streams.detach_from_run()
    waiting.join(30.0)

    assert done == [False]


def test_a_closed_stream_says_so_and_is_forgotten_once_its_drops_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_backlog, "QUEUE_RECORDS_MAX", 2)
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    for _ in range(5):
        streams.add_event(name, b"x")
    assert not streams.close_stream(name, 0.0)
    streams.said()
    streams.hear("3-0", 3)
    assert streams.said() == [CloseWriter("3-0", 3)]
    streams.hear("3-0", 3)

    assert (streams.unwritten(name), streams.dropped) == (0, 3)
    streams.add_event(name, b"too late")
    assert streams.close_stream(name, 0.0)
    assert streams.said() == []


def test_records_that_one_run_did_not_write_are_written_by_the_next(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.opened(tmp_path)
    streams.add_event(name, b"a")
    streams.said()
    streams.detach_from_run()
    streams.attach_to_run(tmp_path, "4")

    assert streams.said() == [OpenWriter("4-0", str(tmp_path), "")]
    streams.hear("4-0", 0)
    assert streams.said() == [Records("4-0", 1, (b"a",), {})]
    streams.hear("4-0", 1)
    assert streams.flush_stream(name, 0.0)


def test_a_service_error_is_known_while_it_lasts(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    streams.add_event(streams.opened(tmp_path), b"a")
    streams.said()
    streams.hear("3-0", 1, "disk full")
    assert streams.error == "disk full"

    streams.hear("3-0", 2)
    assert streams.error == ""


def test_adding_from_many_threads_loses_nothing(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    name = streams.open_stream("/logs", "")

    def add(base: int) -> None:
        for number in range(base, base + 500):
            streams.add_event(name, b"%d" % number)

    threads = [threading.Thread(target=add, args=(base,)) for base in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    written: list[bytes] = []
    streams.said()
    streams.hear("3-0", 0)
    while any(thread.is_alive() for thread in threads) or streams.unwritten(name):
        for message in streams.said():
            if isinstance(message, Records):
                written += message.records
        streams.hear("3-0", len(written))

    assert sorted(map(int, written)) == list(range(4000))
