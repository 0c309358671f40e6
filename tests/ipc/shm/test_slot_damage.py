"""A slot that is torn, truncated, changed or of another version is never used."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.base.errors import PeerError
from procsv.base.identity import TRAINER
from procsv.ipc.shm import slot_header
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotState
from tests.ipc.shm.snapshots import RUN, STATE_AT, fill, flip, publish, read, snapshot

HEADER_USED_BYTES = slot_header._HASH_AT + 8


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
def test_a_file_of_arbitrary_bytes_is_not_a_slot(shm: Path, head: bytes) -> None:
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


def test_a_truncated_slot_is_a_peer_error(pool: SlotPool) -> None:
    info = snapshot(pool, 1)
    os.truncate(info.path, info.toc_offset + 3)
    with pytest.raises(PeerError, match="table of contents"):
        SlotReader(info)
    os.truncate(info.path, 0)
    with pytest.raises(PeerError, match="no longer holds"):
        SlotReader(info)


def test_an_index_of_another_version_is_a_peer_error(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = pool.begin_snapshot()
    assert writer is not None
    contents, end = fill(writer, {"w": b"x"})
    with monkeypatch.context() as patch:
        patch.setattr(msgspec.msgpack, "encode", lambda _: b"\x81\xa3new\x01")
        info = writer.publish_slot(1, 1, contents, end)
    with pytest.raises(PeerError, match="another version"):
        SlotReader(info)
