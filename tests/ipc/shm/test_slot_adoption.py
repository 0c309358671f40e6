"""The next trainer adopts the right slots, leaves the others alone and removes the rest."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import msgspec
import pytest

from procsv.base.identity import TRAINER, TaskId
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_reader import SlotReader, remove_slot
from tests.ipc.shm.snapshots import RUN, publish, snapshot


def test_the_next_trainer_adopts_the_slots_but_never_the_newest_snapshot(shm: Path, pool: SlotPool) -> None:
    snapshot(pool, 1)
    newest = snapshot(pool, 2)
    pool.close()  # dead

    second = SlotPool(shm, RUN, TRAINER, 2)
    second.reserve(1000)
    assert newest.path not in second.paths
    assert len(second.paths) == 2
    assert set(pool_paths(shm)) == {newest.path, *second.paths}
    assert scan_slots(shm) == [newest]
    for sequence in (3, 4, 5):
        snapshot(second, sequence)
        assert scan_slots(shm)[0].sequence == sequence
        assert newest in scan_slots(shm)
    second.close()


def pool_paths(shm: Path) -> list[Path]:
    return sorted(shm.glob("slot.*"))


def test_a_slot_that_a_trainer_restored_from_is_never_overwritten(shm: Path, pool: SlotPool) -> None:
    older, newest = snapshot(pool, 1), snapshot(pool, 2)
    pool.close()
    second = SlotPool(shm, RUN, TRAINER, 2)
    second.reserve(1000, never=frozenset({str(older.path)}))

    assert not {older.path, newest.path} & set(second.paths)
    second.close()


def test_no_more_of_a_dead_trainers_slots_are_adopted_than_are_wanted(shm: Path, pool: SlotPool) -> None:
    pool.reserve(1000, count=4)
    pool.close()
    with contextlib.closing(SlotPool(shm, RUN, TRAINER, 2)) as after:
        assert len(after.reserve(1000, count=2)) == 2
        assert len(after.paths) == 2


def test_a_file_that_is_only_named_like_a_slot_is_left_alone(shm: Path) -> None:
    alien = shm / "slot.of.somebody"
    alien.write_bytes(bytes(2 * HEADER_BYTES))
    with contextlib.closing(SlotPool(shm, RUN, TRAINER, 1)) as pool:
        pool.reserve(1000)
        assert alien not in pool.paths
    assert alien.read_bytes() == bytes(2 * HEADER_BYTES)


def test_slots_already_removed_by_others_are_no_error(shm: Path, pool: SlotPool) -> None:
    pool.paths[0].unlink()
    pool.unlink()
    assert list(shm.iterdir()) == []


def test_slots_that_are_too_small_or_in_use_are_left_alone(shm: Path, pool: SlotPool) -> None:
    older, _ = snapshot(pool, 1), snapshot(pool, 2)
    reader = SlotReader(older)
    second = SlotPool(shm, RUN, TRAINER, 2)
    second.reserve(1000)
    assert older.path not in second.paths
    second.close()
    reader.close()

    third = SlotPool(shm, RUN, TRAINER, 3)
    third.reserve(1_000_000)
    assert older.path not in third.paths
    third.close()


def test_numbers_of_existing_slots_are_skipped(shm: Path, pool: SlotPool) -> None:
    snapshot(pool, 1)
    pool.close()
    again = SlotPool(shm, RUN, TRAINER, 1)  # the same incarnation, a second time
    again.reserve(1000, count=3)
    assert len(set(again.paths)) == 3
    again.close()


def test_each_task_has_its_own_slots_and_adopts_no_others(shm: Path, pool: SlotPool) -> None:
    worker = TaskId("worker", 1)
    mine = snapshot(pool, 1)
    pool.close()
    first = SlotPool(shm, RUN, worker, 1)
    first.reserve(1000)
    theirs = snapshot(first, 5)
    assert {path.name for path in first.paths} == {"slot.worker.1.1.0", "slot.worker.1.1.1"}
    assert [(info.task, info.sequence) for info in scan_slots(shm)] == [(worker, 5), (TRAINER, 1)]
    first.close()
    again = SlotPool(shm, RUN, TRAINER, 2)
    again.reserve(1000, count=4)
    assert theirs.path not in again.paths
    assert mine in scan_slots(shm), "the newest of the trainer's, although the worker has a newer one"
    assert theirs in scan_slots(shm)
    again.close()


# -- removal -----------------------------------------------------------------------------------------------------
def test_a_slot_is_removed_only_if_it_is_unchanged(shm: Path, pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    assert not remove_slot(info.path, msgspec.structs.replace(info, sequence=2))
    assert remove_slot(info.path, info)
    assert not info.path.exists()
    assert remove_slot(info.path, info), "one that is gone already is removed"


def test_a_slot_being_written_or_read_is_not_removed(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    assert not remove_slot(writer.path)
    info = publish(writer, 1, {"w": b"x"})
    reader = SlotReader(info)
    assert not remove_slot(info.path)
    reader.close()
    assert remove_slot(info.path)


def test_a_slot_removed_during_its_adoption_is_not_adopted(
    shm: Path, pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(pool, 1)
    snapshot(pool, 2)
    pool.close()
    flock = fcntl.flock

    def remove_first(fd: int, how: int) -> None:
        for path in shm.glob("slot.1.*"):
            path.unlink()
        flock(fd, how)

    second = SlotPool(shm, RUN, TRAINER, 2)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", remove_first)
        second.reserve(1000)
    assert [path.name for path in second.paths] == ["slot.2.0", "slot.2.1"]
    second.close()
