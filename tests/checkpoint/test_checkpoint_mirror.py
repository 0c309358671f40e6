"""The service offers the chief's newest snapshot to the machine that keeps a copy, whenever the copy is older."""

from __future__ import annotations

from typing import Any

from procsv.base.identity import TaskId
from procsv.ipc.messaging.member_messages import AskSnapshot, SnapshotOffered
from tests.ipc.shm.snapshots import publish

KEEPER = TaskId("member", 1)


def publish_step(pool: Any, sequence: int) -> None:
    publish(pool.begin_snapshot(), sequence, {"weights": b"12345678"})


def test_snapshots_that_come_faster_than_they_are_requested_are_skipped(run: Any) -> None:
    pool, keeper = run.pool(), run.trainer(1, KEEPER)
    run.start_service()
    for sequence in (1, 2):
        publish_step(pool, sequence)

    first = keeper.ask(AskSnapshot(0))
    assert isinstance(first, SnapshotOffered)
    assert first.offer is not None
    assert (first.step, first.offer.sequence) == (20, 2)

    asked = keeper.tell(AskSnapshot(2))
    publish_step(pool, 3)
    answer = keeper.until(lambda heard: isinstance(heard.body, SnapshotOffered) and heard.re == asked, "the next")
    assert answer.body.offer.sequence == 3


def test_a_service_that_replaces_a_killed_one_answers_the_open_request(run: Any) -> None:
    pool, keeper, service = run.pool(), run.trainer(1, KEEPER), run.start_service()
    publish_step(pool, 1)
    assert keeper.ask(AskSnapshot(0)).step == 10
    keeper.tell(AskSnapshot(1))
    service.signal(9)
    run.wait_ended(service)
    run.start_service()

    publish_step(pool, 2)

    keeper.until_body(SnapshotOffered, lambda offered: offered.step == 20)


def test_memory_left_by_an_earlier_run_is_not_copied_again(run: Any) -> None:
    publish_step(run.pool(), 7)
    run.id = "f" * 16
    keeper, pool = run.trainer(1, KEEPER), run.pool(2)
    run.start_service()
    keeper.tell(AskSnapshot(0))

    publish_step(pool, 3)

    keeper.until_body(SnapshotOffered, lambda offered: offered.offer.sequence == 3)
