"""A published snapshot is read back whole from its slot; a torn, damaged or busy slot is never used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import TRAINER
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_index import TENSOR_ALIGNMENT_BYTES, align
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotState
from tests.ipc.shm.snapshots import RUN, STATE_AT, fill, flip, publish, read, snapshot


# -- the path of a snapshot ------------------------------------------------------------------------------------
@given(tensors=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=3000), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_a_published_snapshot_is_read_back(shm: Path, tensors: dict[str, bytes]) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 3)
    pool.reserve(0, count=1)
    writer = pool.begin_snapshot()
    assert writer is not None
    writer.make_room(sum(len(data) + TENSOR_ALIGNMENT_BYTES for data in tensors.values()))
    published = publish(writer, 7, tensors, step=70)

    assert scan_slots(shm) == [published]
    assert (published.incarnation, published.sequence, published.step, published.run) == (3, 7, 70, RUN)
    assert read(published) == tensors
    pool.unlink()


def test_slots_belong_to_the_owner_alone_and_their_memory_is_reserved(pool: SlotPool) -> None:
    for path in pool.paths:
        info = path.stat()
        assert info.st_mode & 0o777 == 0o600
        assert info.st_blocks * 512 >= HEADER_BYTES + 1000


def test_every_tensor_is_aligned_as_tensorflow_needs_it(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, _ = fill(writer, {"a": b"x", "b": b"y" * 65, "c": b""})
    assert [entry.offset % TENSOR_ALIGNMENT_BYTES for entry in contents.shards[0]] == [0, 0, 0]


@given(st.integers(0, 2**40))
def test_align_moves_up_by_less_than_an_alignment(offset: int) -> None:
    assert 0 <= align(offset) - offset < TENSOR_ALIGNMENT_BYTES
    assert align(offset) % TENSOR_ALIGNMENT_BYTES == 0


def test_the_newest_slot_comes_first(shm: Path) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(100, count=3)
    for sequence in (5, 9, 7):
        snapshot(pool, sequence)
    assert [info.sequence for info in scan_slots(shm)] == [9, 7, 5]
    pool.close()


def test_a_slot_being_written_is_not_ready_and_its_old_contents_are_forgotten(shm: Path, pool: SlotPool) -> None:
    snapshot(pool, 1)
    snapshot(pool, 2)
    writer = pool.begin_snapshot()
    assert writer is not None

    assert [info.sequence for info in scan_slots(shm)] == [2]
    flip(writer.path, STATE_AT, SlotState.WRITING ^ SlotState.READY)
    for info in scan_slots(shm):
        if info.path == writer.path:
            with pytest.raises(PeerError):
                SlotReader(info)
    pool.close()  # the trainer is dead: nobody holds the slot
    with pytest.raises(PeerError, match="table of contents"):
        SlotReader(next(info for info in scan_slots(shm) if info.path == writer.path))


def test_an_abandoned_slot_is_free_again(shm: Path, pool: SlotPool) -> None:
    snapshot(pool, 1)
    for _ in range(3):
        writer = pool.begin_snapshot()
        assert writer is not None
        writer.abandon()

    assert [info.sequence for info in scan_slots(shm)] == [1]
    assert sorted(info.state for info in scan_slots(shm, any_state=True)) == [SlotState.FREE, SlotState.READY]


# -- slots that are never overwritten --------------------------------------------------------------------------
def test_the_newest_ready_slot_is_never_written_to(shm: Path, pool: SlotPool) -> None:
    newest = snapshot(pool, 1)
    for sequence in range(2, 50):
        writer = pool.begin_snapshot()
        assert writer is not None
        assert writer.path != newest.path
        assert read(newest) == {"w": b"%d" % (sequence - 1) if sequence > 2 else b"weights"}
        newest = publish(writer, sequence, {"w": b"%d" % sequence})


def test_no_second_slot_can_be_written_at_the_same_time(pool: SlotPool) -> None:
    snapshot(pool, 1)
    assert pool.begin_snapshot() is not None
    assert pool.begin_snapshot() is None


def test_a_slot_being_read_is_not_written_to(shm: Path, pool: SlotPool) -> None:
    older = snapshot(pool, 1)
    reader = SlotReader(older)
    snapshot(pool, 2)

    assert pool.begin_snapshot() is None
    reader.release_lock()
    writer = pool.begin_snapshot()
    assert writer is not None
    assert writer.path == older.path
    reader.close()


def test_a_mapping_keeps_its_contents_after_the_slot_is_released(pool: SlotPool) -> None:
    info = snapshot(pool, 1, b"before")
    reader = SlotReader(info)
    entry = reader.contents.shards[0][0]
    with memoryview(reader.map) as view:
        view[entry.offset] = ord("B")  # ours alone: the map is private
    reader.close()
    assert read(info) == {"w": b"before"}


def test_a_reader_learns_when_its_slot_has_been_refilled(shm: Path, pool: SlotPool) -> None:
    first = snapshot(pool, 1)
    snapshot(pool, 2)
    writer = pool.begin_snapshot()
    assert writer is not None
    with pytest.raises(PeerError, match="being written again"):
        SlotReader(first)
    publish(writer, 3, {"w": b"new"})
    with pytest.raises(PeerError, match="snapshot 1"):
        SlotReader(first)
    first.path.unlink()
    with pytest.raises(PeerError, match="gone"):
        SlotReader(first)


def test_a_slot_with_the_same_number_but_other_contents_is_not_the_announced_one(pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    with pytest.raises(PeerError, match="no longer holds"):
        SlotReader(msgspec.structs.replace(info, incarnation=2))


def test_hashes_are_of_the_bytes_in_the_slot(pool: SlotPool) -> None:
    info = snapshot(pool, 1, b"abc")
    reader = SlotReader(info)
    assert reader.contents.shards[0][0].hash == xxhash.xxh3_64_intdigest(b"abc")
    reader.close()


def test_a_published_slot_cannot_be_published_or_abandoned_again(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, end = fill(writer, {"w": b"weights"})
    published = writer.publish_slot(1, 10, contents, end)

    for wrong in (lambda: writer.publish_slot(2, 20, contents, end), writer.abandon):
        with pytest.raises(ProcsvBug, match="in READY"):
            wrong()
    assert read(published) == {"w": b"weights"}


def test_a_slot_may_be_abandoned_after_its_pool_was_closed(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    pool.close()
    writer.abandon()
