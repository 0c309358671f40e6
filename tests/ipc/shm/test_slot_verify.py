"""Every byte of every tensor in a slot is checked against its checksum, by one or several threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from procsv.ipc.shm import slot_reader
from procsv.ipc.shm.slot_index import TensorEntry, align
from procsv.ipc.shm.slot_reader import BUFFER_BYTES, find_damaged

SIZES = [0, 1, 63, 4096, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 17]


@pytest.fixture(params=["alone", "by threads"], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_reader, "ALONE_BYTES_MAX", 1 << 40 if request.param == "alone" else 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[tuple[int, list[TensorEntry]]]:
    """Return an open file that holds tensors of all `SIZES`, and their entries."""
    at, entries = 4096, []
    fd = os.open(tmp_path / "slot", os.O_RDWR | os.O_CREAT)
    for number, size in enumerate(SIZES):
        data = os.urandom(size)
        os.pwrite(fd, data, at)
        entries.append(TensorEntry(f"v{number}", "", "uint8", (size,), at, size, xxhash.xxh3_64_intdigest(data)))
        at = align(at + size)
    yield fd, entries
    os.close(fd)


def test_an_unchanged_slot_is_not_damaged(slot: tuple[int, list[TensorEntry]]) -> None:
    assert find_damaged(*slot) is None
    assert find_damaged(slot[0], []) is None


@pytest.mark.parametrize("number", [number for number, size in enumerate(SIZES) if size])
def test_a_flipped_bit_anywhere_is_found(slot: tuple[int, list[TensorEntry]], number: int) -> None:
    fd, entries = slot
    entry = entries[number]
    for at in {entry.offset, entry.offset + entry.size // 2, entry.offset + entry.size - 1}:
        (before,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([before ^ 1]), at)
        assert find_damaged(fd, entries) == entry
        os.pwrite(fd, bytes([before]), at)
    assert find_damaged(fd, entries) is None


def test_a_tensor_that_the_file_holds_only_in_part_is_damaged(slot: tuple[int, list[TensorEntry]]) -> None:
    fd, entries = slot
    os.ftruncate(fd, entries[-1].offset + entries[-1].size - 1)
    assert find_damaged(fd, entries) == entries[-1]
