"""The summary service's decisions, without a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.errors import PeerError
from procsv.base.identity import TRAINER, TaskId
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written
from procsv.services.summary.core import (
    Action,
    Append,
    Close,
    Discard,
    Open,
    SummaryCore,
    SummaryReply,
    Sweep,
    attempt_of,
)

SHM = Path("/shm")


def opened() -> SummaryCore:
    core = SummaryCore((SHM,))
    core.attempt_began(TRAINER, 1)
    core.open(b"t", OpenWriter("1-0", "/logs", ""))
    return core


def records(first: int, *data: bytes, **parcels: str) -> Records:
    return Records("1-0", first, data, {int(n[1:]): path for n, path in parcels.items()})


def take(core: SummaryCore, message: Records) -> list[Action]:
    """Return what follows if the disk takes it."""
    done: list[Action] = []
    for action in core.records(b"t", message):
        done += [action, *(core.appended(action) if isinstance(action, Append) else [])]
    return done


def through(actions: list[Action]) -> list[int]:
    return [a.body.through for a in actions if isinstance(a, SummaryReply)]


def test_a_stream_is_opened_once_and_each_request_is_answered() -> None:
    core = SummaryCore((SHM,))
    assert core.open(b"t", OpenWriter("1-0", "/logs", ".x")) == [
        Open("1-0", "/logs", ".x"),
        SummaryReply(b"t", Written("1-0", 0, "")),
    ]
    assert core.open(b"t", OpenWriter("1-0", "/logs", ".x")) == [SummaryReply(b"t", Written("1-0", 0, ""))]


def test_records_are_acknowledged_only_when_they_are_on_disk() -> None:
    core = opened()
    (append,) = core.records(b"t", records(1, b"a", b"b"))

    assert append == Append(b"t", "1-0", (b"a", b"b"))
    assert isinstance(append, Append)
    assert core.appended(append) == [SummaryReply(b"t", Written("1-0", 2, ""))]
    assert core.records_written == 2


def test_records_that_are_already_written_are_dropped() -> None:
    core = opened()
    take(core, records(1, b"a", b"b"))

    assert core.records(b"t", records(1, b"a", b"b", b"c")) == [Append(b"t", "1-0", (b"c",))]
    assert core.records(b"t", records(2, b"b")) == [SummaryReply(b"t", Written("1-0", 2, ""))]


def test_a_gap_is_refused_and_answered_with_the_streams_position() -> None:
    core = opened()

    assert core.records(b"t", records(2, b"b")) == [SummaryReply(b"t", Written("1-0", 0, ""))]


def test_an_unknown_stream_is_answered_with_minus_one() -> None:
    core = SummaryCore((SHM,))

    assert through(core.records(b"t", records(1, b"a"))) == [-1]
    assert through(core.close_stream(b"t", CloseWriter("1-0", 3))) == [-1]


def test_records_that_the_disk_refuses_are_not_written_and_can_be_sent_again() -> None:
    core = opened()
    (append,) = core.records(b"t", records(1, b"a"))
    assert isinstance(append, Append)
    assert core.append_failed(append, "full") == [SummaryReply(b"t", Written("1-0", 0, "full"))]
    assert core.error() == "full"

    assert take(core, records(1, b"a"))[-1] == SummaryReply(b"t", Written("1-0", 1, ""))
    assert core.error() == ""


def test_a_recovered_stream_continues_at_its_position() -> None:
    core = SummaryCore((SHM,))
    core.recovered("1-0", 7)

    assert through(core.open(b"t", OpenWriter("1-0", "/logs", ""))) == [7]
    assert core.records(b"t", records(7, b"g", b"h")) == [Append(b"t", "1-0", (b"h",))]


def test_a_close_before_the_last_record_does_not_close() -> None:
    core = opened()
    assert core.close_stream(b"t", CloseWriter("1-0", 2)) == [SummaryReply(b"t", Written("1-0", 0, ""))]
    take(core, records(1, b"a", b"b"))

    assert core.close_stream(b"t", CloseWriter("1-0", 2)) == [Close("1-0"), SummaryReply(b"t", Written("1-0", 2, ""))]


def test_late_records_of_a_closed_stream_are_answered_and_change_nothing() -> None:
    core = opened()
    take(core, records(1, b"a"))
    core.close_stream(b"t", CloseWriter("1-0", 1))

    assert core.records(b"t", records(1, b"a")) == [SummaryReply(b"t", Written("1-0", 1, ""))]
    assert core.open(b"t", OpenWriter("1-0", "/logs", "")) == [SummaryReply(b"t", Written("1-0", 1, ""))]
    assert core.close_stream(b"t", CloseWriter("1-0", 1)) == [SummaryReply(b"t", Written("1-0", 1, ""))]


def test_a_new_trainer_ends_the_dead_ones_streams_and_its_leftovers() -> None:
    core = opened()
    assert core.attempt_began(TRAINER, 2) == [Close("1-0"), Sweep(TRAINER, 2)]

    assert core.attempt_began(TRAINER, 2) == []
    assert core.is_stale(TRAINER, 1)
    assert not core.is_stale(TRAINER, 2)


def test_a_parcel_is_removed_after_it_is_written_and_when_it_comes_again() -> None:
    core = opened()
    path = "/shm/event.1-0.2"
    assert take(core, records(1, b"a", b"", n2=path)) == [
        Append(b"t", "1-0", (b"a", Path(path))),
        SummaryReply(b"t", Written("1-0", 2, "")),
        Discard((Path(path),)),
    ]
    assert core.records(b"t", records(2, b"", n2=path)) == [
        Discard((Path(path),)),
        SummaryReply(b"t", Written("1-0", 2, "")),
    ]


@pytest.mark.parametrize("path", ["/etc/passwd", "/shm/slot.0", "/shm/sub/event.1-0.1", "event.1-0.1", ""])
def test_a_path_that_is_not_a_parcel_of_this_run_is_refused(path: str) -> None:
    with pytest.raises(PeerError):
        opened().records(b"t", records(1, b"", n1=path))


@pytest.mark.parametrize("name", ["", "1", "-1", "x-1", "1-", "1-../../x", "1-a b", "1-é"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(PeerError):
        SummaryCore((SHM,)).open(b"t", OpenWriter(name, "/logs", ""))


def test_a_name_shows_whose_stream_it_is() -> None:
    assert [attempt_of(name) for name in ("1-0", "12-3.1", "worker.1.3-0")] == [
        (TRAINER, 1),
        (TRAINER, 12),
        (TaskId("worker", 1), 3),
    ]


def test_the_end_of_the_run_closes_every_stream() -> None:
    core = opened()
    core.open(b"t", OpenWriter("1-1", "/logs/eval", ""))

    assert core.close_all() == [Close("1-0"), Close("1-1")]
    assert core.close_all() == []


def test_a_later_attempt_of_one_task_ends_no_stream_of_another() -> None:
    core = SummaryCore((Path("/shm"),))
    worker = TaskId("worker", 1)
    core.attempt_began(TRAINER, 1)
    core.open(b"t", OpenWriter("1-0", "/l", ""))
    assert core.attempt_began(worker, 7) == [Sweep(worker, 7)]
    assert not core.is_stale(TRAINER, 1)
    assert core.records(b"t", Records("1-0", 1, (b"a",), {})) == [Append(b"t", "1-0", (b"a",))]
