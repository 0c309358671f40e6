"""Slot memory is reserved ahead, released when it does not suffice, and reserved again after removal."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsv.base.identity import TRAINER
from procsv.ipc.shm import slot_file
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_index import TENSOR_ALIGNMENT_BYTES
from tests.ipc.shm.snapshots import RUN, publish, read, snapshot


def test_a_slot_grows_for_a_larger_snapshot_and_its_index(shm: Path, pool: SlotPool) -> None:
    big = os.urandom(50_000)
    writer = pool.begin_snapshot()
    assert writer is not None
    writer.make_room(len(big) + 100 * TENSOR_ALIGNMENT_BYTES)
    info = publish(writer, 1, {f"a tensor with a long name {n}": big[n * 500 : (n + 1) * 500] for n in range(100)})

    assert b"".join(read(info).values()) == big
    assert info.path.stat().st_size >= info.toc_offset + info.toc_size


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Pretend that the filesystem is that small; the real one is shared and must not be filled."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_nothing_is_kept_and_the_message_names_the_free_space(shm: Path) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    with files_of_at_most(1_000_000), pytest.raises(NoRoom, match=r" \d+ bytes .* free"):
        pool.reserve(2_000_000)

    assert list(shm.iterdir()) == []
    assert pool.paths == []
    assert pool.begin_snapshot() is None


def test_a_slot_that_cannot_grow_is_abandoned_and_the_older_snapshot_stays(shm: Path, pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    writer = pool.begin_snapshot()
    assert writer is not None
    with files_of_at_most(1_000_000), pytest.raises(NoRoom):
        writer.make_room(2_000_000)
    writer.abandon()

    assert scan_slots(shm) == [info]
    assert snapshot(pool, 2).path == writer.path


def test_a_partial_allocation_on_a_full_disk_is_released(
    shm: Path, pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_some(fd: int, offset: int, size: int) -> None:
        os.ftruncate(fd, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", give_some)
    writer = pool.begin_snapshot()
    assert writer is not None
    before = writer.path.stat().st_size
    with pytest.raises(NoRoom):
        writer.make_room(10_000_000)
    assert writer.path.stat().st_size == before


def test_memory_that_cannot_be_mapped_counts_as_no_room_too(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slot_file, "SlotMap", refuse)
    with pytest.raises(NoRoom, match="cannot map"):
        SlotPool(shm, RUN, TRAINER, 1).reserve(1000)
    assert list(shm.iterdir()) == []


def test_unlinked_slots_are_noticed_and_replaced_beside_the_remaining_ones(shm: Path, pool: SlotPool) -> None:
    newest = snapshot(pool, 1)
    (other,) = (path for path in pool.paths if path != newest.path)
    assert pool.find_lost() == []
    other.unlink()
    assert pool.find_lost() == [other]
    assert not pool.has_lost_directory()
    (new,) = pool.reserve(1000)
    assert pool.find_lost() == []
    assert scan_slots(shm) == [newest], "what is still there is as it was"
    assert snapshot(pool, 2).path != newest.path
    assert len(new) >= HEADER_BYTES + 1000


def test_slots_are_lost_with_their_directory_and_when_another_takes_its_place(shm: Path, pool: SlotPool) -> None:
    old = snapshot(pool, 1)
    shm.rename(shm.with_name("elsewhere"))
    try:
        assert pool.find_lost() == pool.paths
        shm.mkdir(0o700)
        shutil.copy(shm.with_name("elsewhere") / old.path.name, shm)
        assert pool.find_lost() == pool.paths, "a copy is another file"
        assert pool.has_lost_directory()
        pool.reserve(1000)
    finally:
        shutil.rmtree(shm.with_name("elsewhere"))
    assert pool.find_lost() == []
    assert snapshot(pool, 2) in scan_slots(shm)


def test_an_unlinked_slot_that_has_to_grow_names_the_free_space(
    shm: Path, pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    shutil.rmtree(shm)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(NoRoom, match="bytes are free"):
        writer.make_room(1 << 20)
