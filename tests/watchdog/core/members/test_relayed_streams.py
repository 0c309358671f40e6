"""Event records on their way from a task over its launch to the summary service of another machine: each is written once, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from procsv.base.identity import TaskId
from procsv.ipc.messaging.event_backlog import Batch, EventBacklog
from procsv.ipc.messaging.summary_messages import CloseWriter, OpenWriter, Records, Written
from procsv.services.summary.core import Append, Reply, SummaryCore
from procsv.watchdog.core.members import relayed_streams
from procsv.watchdog.core.members.relayed_streams import FULL, RelayedStreams

WORKER, STEP_S = TaskId("worker", 0), 0.1


class Service:
    """The real core, over files in memory by the names of their streams."""

    def __init__(self) -> None:
        self.files: dict[str, list[bytes]] = {}
        self._core = SummaryCore(())

    def hear(self, incarnation: int, message: OpenWriter | Records | CloseWriter) -> list[Written]:
        if self._core.is_stale(WORKER, incarnation):
            return []
        self._core.attempt_began(WORKER, incarnation)
        match message:
            case OpenWriter():
                todo = self._core.open(b"", message)
            case Records():
                todo = self._core.records(b"", message)
            case CloseWriter():
                todo = self._core.close(b"", message)
        said: list[Written] = []
        for action in todo:
            if isinstance(action, Append):
                file = self.files.setdefault(action.writer, [])
                file += [record for record in action.records if isinstance(record, bytes)]
                todo += self._core.appended(action)
            elif isinstance(action, Reply):
                said.append(action.body)
        return said


def records_of(attempt: int, count: int) -> list[bytes]:
    return [f"{attempt}: {number}".encode() for number in range(count)]


def packed(item: OpenWriter | Batch | CloseWriter) -> OpenWriter | Records | CloseWriter:
    return Records(item.writer, item.first, item.records, {}) if isinstance(item, Batch) else item


def pump(relay: RelayedStreams, task: EventBacklog, attempt: int, now_s: float) -> None:
    """All that the task has to say now."""
    for item in task.due(now_s):
        answer = relay.heard(attempt, packed(item))
        task.on_written(answer.through, answer.error, now_s)


def pass_on(relay: RelayedStreams, service: Service, now_s: float, is_carried: Iterator[bool]) -> None:
    for attempt, message in relay.due(now_s):
        for answer in service.hear(attempt, message) if next(is_carried) else []:
            if next(is_carried):
                relay.on_written(answer, now_s)


@pytest.mark.parametrize("seed", range(100))
def test_what_a_task_has_sent_before_it_died_is_written_once_and_in_order_whatever_becomes_of_the_link(
    seed: int,
) -> None:
    rng = random.Random(seed)
    relay, service, now_s = RelayedStreams(), Service(), 0.0
    loss = rng.choice([0.0, 0.2, 0.6])
    is_carried = iter(lambda: rng.random() >= loss, None)
    sent: dict[int, list[bytes]] = {}
    for attempt in range(1, 4):
        assert relay.began(attempt)
        task, sent[attempt] = EventBacklog(f"worker.0.{attempt}-0", "/logdir", ""), records_of(attempt, 700)
        for record in sent[attempt]:
            task.add_record(record)
        while task.unwritten:  # then it is killed
            now_s += STEP_S
            pump(relay, task, attempt, now_s)
            if rng.random() < 0.3:
                pass_on(relay, service, now_s, is_carried)
            if rng.random() < 0.1:
                relay.connected()  # the link was cut
    while relay.unwritten:
        now_s += STEP_S
        pass_on(relay, service, now_s, is_carried)
        assert now_s < 1e4, "no end in sight"

    assert service.files == {f"worker.0.{attempt}-0": records for attempt, records in sent.items()}
    assert relay.is_written(3)


def test_an_attempt_that_is_dead_is_not_heard_any_more() -> None:
    relay = RelayedStreams()
    assert relay.began(2)

    assert not relay.began(1)


def test_nothing_of_an_attempt_is_sent_before_all_of_the_one_before_is_written() -> None:
    relay, service = RelayedStreams(), Service()
    for attempt in (1, 2):
        relay.began(attempt)
        name = f"worker.0.{attempt}-0"
        relay.heard(attempt, OpenWriter(name, "/logdir", ""))
        relay.heard(attempt, Records(name, 1, (b"a",), {}))

    assert {attempt for attempt, _ in relay.due(0.0)} == {1}, "its stream is not open yet"
    assert not relay.is_written(1)
    relay.connected()
    while relay.unwritten:
        pass_on(relay, service, 0.0, iter(lambda: True, None))
    assert list(service.files) == ["worker.0.1-0", "worker.0.2-0"]


def test_no_more_is_taken_than_a_launch_keeps_and_the_task_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_streams, "KEPT_RECORDS_MAX", 3)
    relay, name = RelayedStreams(), "worker.0.1-0"
    relay.began(1)
    relay.heard(1, OpenWriter(name, "/logdir", ""))

    assert relay.heard(1, Records(name, 1, (b"a", b"b"), {})) == Written(name, 2, "")
    assert relay.heard(1, Records(name, 3, (b"c", b"d"), {})) == Written(name, 3, FULL)
    assert relay.heard(1, Records(name, 4, (b"d",), {})) == Written(name, 3, FULL)

    service = Service()
    while relay.unwritten:
        pass_on(relay, service, 0.0, iter(lambda: True, None))
    assert relay.heard(1, Records(name, 4, (b"d",), {})) == Written(name, 4, "")


def test_bytes_have_a_bound_of_their_own_and_a_record_that_no_message_carries_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relayed_streams, "KEPT_BYTES_MAX", 100)
    monkeypatch.setattr(relayed_streams, "RECORD_BYTES_MAX", 60)
    relay, name = RelayedStreams(), "worker.0.1-0"
    relay.began(1)
    relay.heard(1, OpenWriter(name, "/logdir", ""))

    assert relay.heard(1, Records(name, 1, (b"a" * 61,), {})).through == 1
    assert (relay.left_out, relay.unwritten) == (1, 0)
    assert relay.heard(1, Records(name, 2, (b"a" * 60, b"b" * 60), {})).through == 2
    assert relay.unwritten == 1


def test_with_another_coordinator_what_is_not_written_goes_to_new_files() -> None:
    relay, before, after, name = RelayedStreams(), Service(), Service(), "worker.0.1-0"
    relay.began(1)
    relay.heard(1, OpenWriter(name, "/logdir", ""))
    relay.heard(1, Records(name, 1, (b"a",), {}))
    while relay.unwritten:
        pass_on(relay, before, 0.0, iter(lambda: True, None))
    relay.heard(1, Records(name, 2, (b"b",), {}))

    relay.follow_run()

    relay.heard(1, Records(name, 3, (b"c",), {}))
    while relay.unwritten:
        pass_on(relay, after, 1.0, iter(lambda: True, None))
    assert (before.files, after.files) == ({name: [b"a"]}, {name: [b"b", b"c"]})
