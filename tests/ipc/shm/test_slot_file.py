"""Slots in shared memory: what is published is read back whole, what is torn, damaged or in use is never taken."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.errors import PeerError, ProcsvBug
from procsv.base.identity import TRAINER, TaskId
from procsv.ipc.shm import slot_file, slot_header
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.ipc.shm.slot_header import HEADER_BYTES, scan_slots
from procsv.ipc.shm.slot_index import TENSOR_ALIGNMENT_BYTES, align
from procsv.ipc.shm.slot_reader import SlotReader, remove_slot
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from tests.ipc.shm.snapshots import RUN, fill, flip, publish, read

STATE_AT = 16
HEADER_USED_BYTES = slot_header._HASH_AT + 8


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


@pytest.fixture
def pool(shm: Path) -> Iterator[SlotPool]:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(1000)
    yield pool
    pool.close()


def snapshot(pool: SlotPool, sequence: int, data: bytes = b"weights") -> SlotInfo:
    writer = pool.begin_snapshot()
    assert writer is not None
    return publish(writer, sequence, {"w": data})


# -- the way of a snapshot -------------------------------------------------------------------------------------
@given(tensors=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=3000), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_what_is_published_is_read_back(shm: Path, tensors: dict[str, bytes]) -> None:
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


def test_slots_are_the_owner_s_alone_and_their_memory_is_reserved(pool: SlotPool) -> None:
    for path in pool.paths:
        info = path.stat()
        assert info.st_mode & 0o777 == 0o600
        assert info.st_blocks * 512 >= HEADER_BYTES + 1000


def test_every_tensor_begins_where_tensorflow_wants_it(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, _ = fill(writer, {"a": b"x", "b": b"y" * 65, "c": b""})
    assert [entry.offset % TENSOR_ALIGNMENT_BYTES for entry in contents.shards[0]] == [0, 0, 0]


@given(st.integers(0, 2**40))
def test_align_moves_up_by_less_than_an_alignment(offset: int) -> None:
    assert 0 <= align(offset) - offset < TENSOR_ALIGNMENT_BYTES
    assert align(offset) % TENSOR_ALIGNMENT_BYTES == 0


def test_the_newest_comes_first(shm: Path) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(100, count=3)
    for sequence in (5, 9, 7):
        snapshot(pool, sequence)
    assert [info.sequence for info in scan_slots(shm)] == [9, 7, 5]
    pool.close()


def test_a_slot_that_is_being_written_is_not_ready_and_what_it_held_is_forgotten(shm: Path, pool: SlotPool) -> None:
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


# -- what is never overwritten ---------------------------------------------------------------------------------
def test_the_newest_ready_slot_is_never_the_one_to_be_written(shm: Path, pool: SlotPool) -> None:
    newest = snapshot(pool, 1)
    for sequence in range(2, 50):
        writer = pool.begin_snapshot()
        assert writer is not None
        assert writer.path != newest.path
        assert read(newest) == {"w": b"%d" % (sequence - 1) if sequence > 2 else b"weights"}
        newest = publish(writer, sequence, {"w": b"%d" % sequence})


def test_while_a_slot_is_written_no_second_one_is_to_be_had(pool: SlotPool) -> None:
    snapshot(pool, 1)
    assert pool.begin_snapshot() is not None
    assert pool.begin_snapshot() is None


def test_a_slot_that_is_read_is_not_written(shm: Path, pool: SlotPool) -> None:
    older = snapshot(pool, 1)
    reader = SlotReader(older)
    snapshot(pool, 2)

    assert pool.begin_snapshot() is None
    reader.let_go()
    writer = pool.begin_snapshot()
    assert writer is not None
    assert writer.path == older.path
    reader.close()


def test_what_was_mapped_before_it_was_let_go_stays_what_it_was(pool: SlotPool) -> None:
    info = snapshot(pool, 1, b"before")
    reader = SlotReader(info)
    entry = reader.contents.shards[0][0]
    with memoryview(reader.map) as view:
        view[entry.offset] = ord("B")  # ours alone: the map is private
    reader.close()
    assert read(info) == {"w": b"before"}


def test_a_reader_is_told_when_its_slot_has_moved_on(shm: Path, pool: SlotPool) -> None:
    first = snapshot(pool, 1)
    snapshot(pool, 2)
    writer = pool.begin_snapshot()
    assert writer is not None
    with pytest.raises(PeerError, match="being written again"):
        SlotReader(first)
    publish(writer, 3, {"w": b"new"})
    with pytest.raises(PeerError, match="no longer holds snapshot 1"):
        SlotReader(first)
    first.path.unlink()
    with pytest.raises(PeerError, match="gone"):
        SlotReader(first)


def test_a_slot_with_the_same_number_but_another_content_is_not_what_was_announced(pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    with pytest.raises(PeerError, match="no longer holds"):
        SlotReader(msgspec.structs.replace(info, incarnation=2))


# -- damage ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", range(HEADER_USED_BYTES))
def test_a_damaged_header_never_passes_for_another_snapshot(shm: Path, at: int) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    pool.reserve(1000, count=1)
    whole = snapshot(pool, 5)
    for mask in (1, 2, 0x80, 0xFF):
        flip(whole.path, at, mask)
        assert scan_slots(shm) == []
        with pytest.raises(PeerError):
            SlotReader(whole)
        for info in scan_slots(shm, any_state=True):
            assert at in range(STATE_AT, STATE_AT + 4), "only the state may change without the header being torn"
            assert msgspec.structs.replace(info, state=SlotState.READY) == whole
        flip(whole.path, at, mask)
    assert scan_slots(shm) == [whole]
    pool.unlink()


@given(head=st.binary(min_size=0, max_size=HEADER_USED_BYTES + 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_file_of_any_bytes_is_no_slot(shm: Path, head: bytes) -> None:
    (shm / "slot.1.0").write_bytes(head)
    assert scan_slots(shm, any_state=True) == []
    (shm / "slot.1.0").write_bytes(slot_header._MAGIC + head)
    assert scan_slots(shm, any_state=True) == []


def test_every_byte_of_the_data_and_of_the_table_is_checked(shm: Path, pool: SlotPool) -> None:
    tensors = {"kernel": bytes(range(100)), "bias": b"\0" * 7}
    writer = pool.begin_snapshot()
    assert writer is not None
    info = publish(writer, 1, tensors)
    reader = SlotReader(info)
    entries = {entry.key: entry for entry in reader.contents.shards[0]}
    reader.close()

    for key, entry in entries.items():
        for at in range(entry.offset, entry.offset + entry.size):
            flip(info.path, at, 1)
            with pytest.raises(PeerError, match=f"{key} does not match"):
                read(info)
            flip(info.path, at, 1)
    for at in range(info.toc_offset, info.toc_offset + info.toc_size):
        flip(info.path, at, 1)
        with pytest.raises(PeerError, match="table of contents"):
            read(info)
        flip(info.path, at, 1)
    assert read(info) == tensors


def test_a_slot_that_was_cut_short_is_a_peer_error(pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    os.truncate(info.path, info.toc_offset + 3)
    with pytest.raises(PeerError, match="table of contents"):
        SlotReader(info)
    os.truncate(info.path, 0)
    with pytest.raises(PeerError, match="no longer holds"):
        SlotReader(info)


def test_a_table_of_contents_of_another_version_is_a_peer_error(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, end = fill(writer, {"w": b"x"})
    with monkeypatch.context() as patch:
        patch.setattr(msgspec.msgpack, "encode", lambda _: b"\x81\xa3new\x01")
        info = writer.publish(1, 1, contents, end)
    with pytest.raises(PeerError, match="another version"):
        SlotReader(info)


# -- room ------------------------------------------------------------------------------------------------------
def test_a_slot_grows_for_a_larger_snapshot_and_for_its_table(shm: Path, pool: SlotPool) -> None:
    big = os.urandom(50_000)
    writer = pool.begin_snapshot()
    assert writer is not None
    writer.make_room(len(big) + 100 * TENSOR_ALIGNMENT_BYTES)
    info = publish(writer, 1, {f"a tensor with a long name {n}": big[n * 500 : (n + 1) * 500] for n in range(100)})

    assert b"".join(read(info).values()) == big
    assert info.path.stat().st_size >= info.toc_offset + info.toc_size


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As if the filesystem were this small; the real one is everybody's, and must not be filled up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_there_is_no_room_nothing_is_kept_and_the_text_says_how_much_there_is(shm: Path) -> None:
    pool = SlotPool(shm, RUN, TRAINER, 1)
    with files_of_at_most(1_000_000), pytest.raises(NoRoom, match=r"cannot hold a snapshot of \d+ bytes .* are free"):
        pool.reserve(2_000_000)

    assert list(shm.iterdir()) == []
    assert pool.paths == []
    assert pool.begin_snapshot() is None


def test_a_slot_that_cannot_grow_is_abandoned_and_the_older_snapshot_stands(shm: Path, pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    writer = pool.begin_snapshot()
    assert writer is not None
    with files_of_at_most(1_000_000), pytest.raises(NoRoom):
        writer.make_room(2_000_000)
    writer.abandon()

    assert scan_slots(shm) == [info]
    assert snapshot(pool, 2).path == writer.path


def test_what_a_full_disk_gave_of_what_was_asked_is_given_back(
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


def test_memory_that_cannot_be_mapped_is_no_room_either(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slot_file, "SlotMap", refuse)
    with pytest.raises(NoRoom, match="cannot map"):
        SlotPool(shm, RUN, TRAINER, 1).reserve(1000)
    assert list(shm.iterdir()) == []


# -- from one trainer to the next --------------------------------------------------------------------------------
def test_the_next_trainer_takes_over_the_slots_but_never_the_newest_snapshot(shm: Path, pool: SlotPool) -> None:
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


def test_a_slot_that_a_trainer_restored_from_is_never_written_again(shm: Path, pool: SlotPool) -> None:
    older, newest = snapshot(pool, 1), snapshot(pool, 2)
    pool.close()
    second = SlotPool(shm, RUN, TRAINER, 2)
    second.reserve(1000, never=frozenset({str(older.path)}))

    assert not {older.path, newest.path} & set(second.paths)
    second.close()


def test_of_a_dead_trainers_slots_no_more_are_taken_over_than_are_wanted(shm: Path, pool: SlotPool) -> None:
    pool.reserve(1000, count=4)
    pool.close()
    with contextlib.closing(SlotPool(shm, RUN, TRAINER, 2)) as after:
        assert len(after.reserve(1000, count=2)) == 2
        assert len(after.paths) == 2


def test_a_file_that_is_only_called_like_a_slot_is_left_alone(shm: Path) -> None:
    alien = shm / "slot.of.somebody"
    alien.write_bytes(bytes(2 * HEADER_BYTES))
    with contextlib.closing(SlotPool(shm, RUN, TRAINER, 1)) as pool:
        pool.reserve(1000)
        assert alien not in pool.paths
    assert alien.read_bytes() == bytes(2 * HEADER_BYTES)


def test_slots_that_somebody_has_removed_are_no_trouble_to_who_removes_them(shm: Path, pool: SlotPool) -> None:
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


def test_numbers_of_slots_that_are_there_already_are_passed_over(shm: Path, pool: SlotPool) -> None:
    snapshot(pool, 1)
    pool.close()
    again = SlotPool(shm, RUN, TRAINER, 1)  # the same incarnation, a second time
    again.reserve(1000, count=3)
    assert len(set(again.paths)) == 3
    again.close()


def test_each_task_has_slots_of_its_own_and_takes_over_no_other_s(shm: Path, pool: SlotPool) -> None:
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
def test_a_slot_is_removed_if_it_is_still_what_it_was(shm: Path, pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    assert not remove_slot(info.path, msgspec.structs.replace(info, sequence=2))
    assert remove_slot(info.path, info)
    assert not info.path.exists()
    assert remove_slot(info.path, info), "one that is gone already is removed"


def test_a_slot_that_is_written_or_read_is_not_removed(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    assert not remove_slot(writer.path)
    info = publish(writer, 1, {"w": b"x"})
    reader = SlotReader(info)
    assert not remove_slot(info.path)
    reader.close()
    assert remove_slot(info.path)


def test_a_slot_that_was_removed_under_the_hands_of_who_adopts_it_is_not_adopted(
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


def test_hashes_are_of_the_bytes_as_they_lie_there(pool: SlotPool) -> None:
    info = snapshot(pool, 1, b"abc")
    reader = SlotReader(info)
    assert reader.contents.shards[0][0].hash == xxhash.xxh3_64_intdigest(b"abc")
    reader.close()


def test_a_slot_that_is_published_cannot_be_published_or_abandoned_again(pool: SlotPool) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, end = fill(writer, {"w": b"weights"})
    published = writer.publish(1, 10, contents, end)

    for wrong in (lambda: writer.publish(2, 20, contents, end), writer.abandon):
        with pytest.raises(ProcsvBug, match="in READY"):
            wrong()
    assert read(published) == {"w": b"weights"}


def test_slots_that_were_unlinked_are_found_and_had_anew_beside_those_that_are_still_there(
    shm: Path, pool: SlotPool
) -> None:
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


def test_slots_are_lost_with_their_directory_and_with_one_that_takes_its_place(shm: Path, pool: SlotPool) -> None:
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


def test_a_slot_that_has_to_grow_and_was_unlinked_says_how_much_room_there_is(
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
