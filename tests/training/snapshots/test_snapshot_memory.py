"""The memory for snapshots may be late, missing or removed, and is reserved again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from procsv.ipc.messaging.checkpoint_messages import SaveFailed
from procsv.ipc.shm.slot_file import NoRoom, SlotsLost
from procsv.training.snapshots.snapshot_queue import SnapshotRequest
from procsv.training.snapshots.snapshot_state import SnapshotState
from tests.training.snapshots.snapshotter_world import HERE, NEWS_S_MAX, PINNED, WORKER, World


def test_a_capture_that_needs_no_memory_does_not_wait_for_it_and_is_copied_once_it_is_there() -> None:
    world = World(has_memory=False)
    world.backend.is_ahead_of_memory = True
    world.snapshotter.reserve_early()
    record = world.snapshotter.capture_async("manual")
    assert (record.state, record.failure, world.backend.captured_by) == (SnapshotState.CAPTURED, None, [HERE])
    world.backend.is_ahead_of_memory = False
    world.train(during=lambda: world.snapshotter.request(SnapshotRequest("periodic")))
    assert (world.source.step, world.backend.captured_by) == (1, [HERE]), "the next one needs memory"
    assert not world.told
    world.backend.may_reserve.set()
    assert world.wait_told(1).step == 0
    world.snapshotter.close()
    assert world.backend.copied_by[0] == WORKER


def test_nothing_that_needs_memory_is_captured_while_it_is_being_reserved() -> None:
    world = World(has_memory=False)
    assert world.backend.is_asked_for_memory.wait(NEWS_S_MAX)
    world.train(during=lambda: world.snapshotter.request(SnapshotRequest("periodic")))
    assert not world.backend.captured_by
    world.backend.may_reserve.set()
    assert world.wait_told(1).step == 1
    world.snapshotter.close()


def test_without_room_the_fallback_takes_over_with_one_message_and_no_waiter_notices(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cadence.fixed_s, world.backend.room = None, 2 * 2**20 + 1
    world.backend.copy_failures = [NoRoom("64 MB"), NoRoom("64 MB")]
    with caplog.at_level(logging.WARNING, "procsv"):
        assert world.snapshotter.take_snapshot("final").state is SnapshotState.PUBLISHED
        world.snapshotter.take_snapshot("final")
    assert len(world.backend.captured_by) == 1
    assert len(world.fallback.captured_by) == 2
    (told,) = (record.getMessage() for record in caplog.records)
    assert all(
        word in told
        for word in ("no snapshots", "64 MB", "5 %", "crash", " 3 MiB", "--shm-size", "emptyDir.medium: Memory")
    ), told


def test_without_room_a_requested_interval_is_kept_and_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cadence.fixed_s = 30.0
    world.backend.copy_failures = [NoRoom("64 MB")]
    with caplog.at_level(logging.WARNING, "procsv"):
        world.snapshotter.take_snapshot("final")
    assert "--snapshot-secs" in caplog.text
    assert "5 %" not in caplog.text
    assert world.cadence.told().interval_s == 30.0


def test_removed_memory_is_reserved_again_and_what_is_not_durable_is_captured_again(world: World) -> None:
    world.train()
    last = world.snapshotter.take_snapshot("final")
    world.train()
    world.backend.lost.append(Path("slot.1.0"))
    world.snapshotter.on_failed(SaveFailed(last.sequence, 1, "it is gone"))
    assert (world.wait_told(2).step, world.told[1].want) == (2, "final")
    assert world.noted == [("ground_lost", "slot"), ("ground_restored", "slot")]
    world.save(last.sequence)
    assert world.snapshotter.wait_durable(last, NEWS_S_MAX)


def test_memory_removed_during_a_copy_is_reserved_again_and_the_state_is_captured_again(world: World) -> None:
    world.backend.may_copy.clear()
    world.backend.copy_failures = [SlotsLost("slot.1.0 is gone")]
    world.train(during=lambda: world.snapshotter.request(PINNED))
    world.backend.lost.append(Path("slot.1.0"))
    world.train(during=world.backend.may_copy.set)  # within the step: between two steps the worker may be first
    assert (world.wait_told(1).step, len(world.told)) == (2, 1)


def test_periodic_snapshots_go_on_when_memory_was_removed_and_no_call_comes_by(world: World) -> None:
    world.snapshotter.start_cadence()
    world.wait_told(1)
    world.backend.lost.append(Path("slot.1.0"))
    assert world.wait_told(len(world.told) + 2).want == ""
    world.snapshotter.stop_cadence()
