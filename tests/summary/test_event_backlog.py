"""A backlog of event records keeps their order and its bounds, and resends records until they are written."""

from __future__ import annotations

import pytest

from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, parcel_name, parcel_writer
from procsv.training.runtime import event_backlog
from procsv.training.runtime.event_backlog import Batch, EventBacklog


def opened(count: int = 0, size: int = 1) -> EventBacklog:
    backlog = EventBacklog("1-0", "/logs", ".a")
    for number in range(1, count + 1):
        backlog.add_record(bytes([number % 256]) * size)
    assert backlog.due(0.0) == [OpenWriter("1-0", "/logs", ".a")]
    backlog.on_written(0, "", 0.0)
    return backlog


def batches(backlog: EventBacklog, now_s: float) -> list[tuple[int, int]]:
    """Return (first, count) of each due batch."""
    return [(b.first, len(b.records)) for b in backlog.due(now_s) if isinstance(b, Batch)]


def test_nothing_is_sent_before_the_first_record() -> None:
    backlog = EventBacklog("1-0", "/logs", "")

    assert backlog.due(0.0) == []
    assert backlog.next_due_s(0.0) is None
    backlog.end_stream()
    assert backlog.due(0.0) == []
    assert backlog.is_closed


def test_open_is_resent_every_second_until_it_is_answered() -> None:
    backlog = EventBacklog("1-0", "/logs", "")
    backlog.add_record(b"a")

    assert [len(backlog.due(now_s)) for now_s in (0.0, 0.5, 1.0, 1.5, 2.0)] == [1, 0, 1, 0, 1]
    assert backlog.next_due_s(2.0) == 3.0


def test_batches_are_bounded_in_records_bytes_and_number() -> None:
    assert batches(opened(5000), 0.0) == [(1, 512), (513, 512), (1025, 512), (1537, 512)]
    assert batches(opened(10, size=2**19), 0.0) == [(1, 2), (3, 2), (5, 2), (7, 2)]


def test_a_large_record_gets_its_own_batch() -> None:
    backlog = opened(1)
    backlog.add_record(bytes(event_backlog.BATCH_BYTES_MAX + 1))
    backlog.add_record(b"small")

    due = [b for b in backlog.due(0.0) if isinstance(b, Batch)]
    assert [(b.first, len(b.records), b.is_parcel) for b in due] == [(1, 1, False), (2, 1, True), (3, 1, False)]


def test_an_answer_makes_room_for_the_next_batch() -> None:
    backlog = opened(3000)
    assert len(batches(backlog, 0.0)) == 4
    assert batches(backlog, 0.1) == []

    backlog.on_written(512, "", 0.1)
    assert batches(backlog, 0.1) == [(2049, 512)]


def test_after_a_second_of_silence_everything_in_flight_is_resent() -> None:
    backlog = opened(1000)
    assert batches(backlog, 0.0) == [(1, 512), (513, 488)]
    backlog.on_written(512, "", 0.4)

    assert backlog.next_due_s(0.4) == 1.4
    assert batches(backlog, 1.3) == []
    assert batches(backlog, 1.4) == [(513, 488)]


def test_a_new_connection_asks_for_the_position_first_and_continues_from_the_answer() -> None:
    backlog = opened(100)
    assert batches(backlog, 0.0) == [(1, 100)]
    backlog.connected()

    assert backlog.due(0.1) == [OpenWriter("1-0", "/logs", ".a")]
    backlog.on_written(60, "", 0.2)
    assert batches(backlog, 0.2) == [(61, 40)]


def test_an_unknown_stream_is_opened_again() -> None:
    backlog = opened(10)
    backlog.due(0.0)
    backlog.on_written(-1, "", 0.1)

    assert backlog.due(0.1) == [OpenWriter("1-0", "/logs", ".a")]


def test_the_oldest_unsent_record_is_dropped_and_counted_and_the_numbers_have_no_gap() -> None:
    backlog = opened(2048)
    assert len(batches(backlog, 0.0)) == 4
    for number in range(2049, event_backlog.QUEUE_RECORDS_MAX + 101):
        backlog.add_record(number.to_bytes(4, "little"))

    assert (backlog.unwritten, backlog.dropped) == (event_backlog.QUEUE_RECORDS_MAX, 100)
    backlog.on_written(2048, "", 0.1)
    (first, *_) = [b for b in backlog.due(0.1) if isinstance(b, Batch)]
    assert (first.first, int.from_bytes(first.records[0], "little")) == (2049, 2149)


def test_the_backlog_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_backlog, "QUEUE_BYTES_MAX", 1000)
    backlog = EventBacklog("1-0", "/logs", "")
    for _ in range(5):
        backlog.add_record(bytes(300))

    assert (backlog.unwritten, backlog.dropped) == (3, 2)


def test_a_record_is_done_when_it_and_all_before_it_are_written_or_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_backlog, "QUEUE_RECORDS_MAX", 3)
    backlog = EventBacklog("1-0", "/logs", "")
    tickets = [backlog.add_record(b"x") for _ in range(5)]
    assert [backlog.is_done(t) for t in tickets] == [True, True, False, False, False]

    backlog.due(0.0)
    backlog.on_written(0, "", 0.0)
    backlog.due(0.0)
    backlog.on_written(2, "", 0.0)
    assert [backlog.is_done(t) for t in tickets] == [True, True, True, True, False]


def test_close_is_sent_when_everything_is_written_and_resent_until_it_is_answered() -> None:
    backlog = opened(2)
    backlog.end_stream()
    assert batches(backlog, 0.0) == [(1, 2)]
    assert backlog.due(0.1) == []

    backlog.on_written(2, "", 0.1)
    assert backlog.due(0.1) == [CloseWriter("1-0", 2)]
    assert backlog.due(0.5) == []
    assert backlog.due(1.2) == [CloseWriter("1-0", 2)]
    backlog.on_written(2, "", 1.3)
    assert backlog.is_closed


def test_a_service_that_has_forgotten_the_stream_has_handled_its_close() -> None:
    backlog = opened(2)
    backlog.end_stream()
    backlog.due(0.0)
    backlog.on_written(2, "", 0.1)
    assert backlog.due(0.1) == [CloseWriter("1-0", 2)]
    backlog.connected()

    assert backlog.due(0.2) == [CloseWriter("1-0", 2)]
    backlog.on_written(-1, "", 0.3)
    assert backlog.is_closed


def test_a_late_answer_changes_nothing() -> None:
    backlog = opened(1000)
    backlog.due(0.0)
    backlog.on_written(512, "", 0.1)
    backlog.on_written(3, "", 0.2)

    assert backlog.unwritten == 488
    assert batches(backlog, 0.3) == []


def test_a_service_that_has_lost_the_stream_gets_the_rest_under_a_new_name() -> None:
    backlog = opened(20)
    backlog.due(0.0)
    backlog.on_written(10, "", 0.0)
    backlog.connected()
    now_s = 1.0
    while backlog.writer == "1-0":
        assert now_s < 10.0
        assert backlog.due(now_s) == [OpenWriter("1-0", "/logs", ".a")]
        backlog.on_written(0, "", now_s)
        now_s += 1.0

    assert now_s > 1.0 + event_backlog.LOST_S
    assert backlog.due(now_s) == [OpenWriter("1-0.1", "/logs", ".a")]
    backlog.on_written(0, "", now_s)
    assert batches(backlog, now_s) == [(1, 10)]


def test_an_error_is_reported_until_it_is_over() -> None:
    backlog = opened(1)
    backlog.due(0.0)
    backlog.on_written(0, "No space left on device", 0.1)
    assert backlog.error == "No space left on device"
    assert batches(backlog, 1.0) == [(1, 1)]

    backlog.on_written(1, "", 1.1)
    assert (backlog.error, backlog.unwritten) == ("", 0)


def test_a_parcels_name_shows_its_owner() -> None:
    assert parcel_writer(parcel_name("3-1.2", 77)) == "3-1.2"
