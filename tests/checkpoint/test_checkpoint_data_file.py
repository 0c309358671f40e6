"""A data file has the same bytes whichever way they reach the disk, and a changed byte is noticed."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from procsv.base.system import disk
from procsv.services.checkpoint.core.facts import WriteMismatch
from procsv.services.checkpoint.format import data_file
from procsv.services.checkpoint.format.data_file import BLOCK_BYTES, TRIAL_BYTES, DataFile, keeps_up
from tests.support.power_loss import Killed, Recording

SIZES = [
    0,
    1,
    4095,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    3 * BLOCK_BYTES + 5000,
    TRIAL_BYTES + BLOCK_BYTES + 7,
]


def data_of(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def write(path: Path, data: bytes, piece: int = 2**20) -> DataFile:
    file = DataFile(path)
    try:
        for at in range(0, len(data), piece):
            file.append_data(data[at : at + piece])
        told = file.finish_file()
    finally:
        file.close()
    assert (told.size, told.xxh3_128) == (len(data), xxhash.xxh3_128_hexdigest(data))
    return file


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each write whether it bypassed the page cache."""
    seen: list[bool] = []
    real = disk.set_direct
    state = {"on": False}

    def set_direct(fd: int, on: bool) -> bool:
        done = real(fd, on)
        state["on"] = on and done
        return done

    real_write = disk.write

    def count(fd: int, data: Any) -> int:
        seen.append(state["on"])
        return real_write(fd, data)

    monkeypatch.setattr(disk, "set_direct", set_direct)
    monkeypatch.setattr(disk, "write", count)
    return seen


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "keeps_up", lambda size, seconds: True)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("size", SIZES)
def test_a_file_holds_the_bytes_appended_to_it(size: int, tmp_path: Path, writes: list[bool]) -> None:
    data = data_of(size)
    file = write(tmp_path / "data", data, piece=1_000_003)
    assert (tmp_path / "data").read_bytes() == data
    assert file.is_direct == (size >= BLOCK_BYTES), "whole blocks go to the disk directly"
    assert sum(writes) == size // BLOCK_BYTES + (1 if size > BLOCK_BYTES and size % BLOCK_BYTES >= 4096 else 0)


def test_on_a_slow_disk_the_rest_goes_through_the_page_cache(
    tmp_path: Path, writes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "keeps_up", lambda size, seconds: False)
    data = data_of(TRIAL_BYTES + 3 * BLOCK_BYTES + 11)
    file = write(tmp_path / "data", data)
    assert (tmp_path / "data").read_bytes() == data
    assert not file.is_direct, "it is read back"
    assert writes == [True] * (TRIAL_BYTES // BLOCK_BYTES) + [False] * 4


def test_a_fast_disk_keeps_up_with_three_hundred_megabytes_a_second() -> None:
    assert keeps_up(30_000_000, 0.1)
    assert not keeps_up(30_000_000, 0.11)


def test_a_filesystem_without_direct_writes_uses_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "set_direct", lambda fd, on: False)
    data = data_of(2 * BLOCK_BYTES + 1)
    assert not write(tmp_path / "data", data).is_direct
    assert (tmp_path / "data").read_bytes() == data


def test_writes_use_huge_pages_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clearing and passing a thousand small pages costs as much as copying a block."""
    real, flags = disk.write, list[set[str]]()

    def look(fd: int, view: memoryview) -> int:
        flags.append(mapping_flags(ctypes.addressof(ctypes.c_char.from_buffer(view))))
        return real(fd, view)

    monkeypatch.setattr(disk, "write", look)
    write(tmp_path / "data", data_of(BLOCK_BYTES))
    assert flags
    assert "sh" not in flags[0], "memory that is shared has none"
    assert "hg" in flags[0] or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def mapping_flags(address: int) -> set[str]:
    """Return the flags in /proc/self/smaps of the mapping that holds `address`."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_it = int(found[1], 16) <= address < int(found[2], 16)
        elif is_it and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("no mapping holds it")


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("at", [1, 2])
def test_a_filesystem_that_accepts_the_flag_but_not_the_write_uses_the_page_cache(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = disk.write, itertools.count(1)

    def refuse(fd: int, view: Any) -> int:
        if next(calls) == at:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, view)

    monkeypatch.setattr(disk, "write", refuse)
    data = data_of(3 * BLOCK_BYTES + 1)
    assert not write(tmp_path / "data", data).is_direct
    assert (tmp_path / "data").read_bytes() == data


@pytest.mark.usefixtures("fast")
def test_other_errors_of_a_direct_write_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, view: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "data", data_of(BLOCK_BYTES))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("size", [2 * BLOCK_BYTES, BLOCK_BYTES + 10])
def test_a_byte_that_changes_on_its_way_to_the_disk_is_noticed(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = disk.write, itertools.count()

    def flip(fd: int, view: memoryview) -> int:
        if next(calls) == 1:
            view[5] ^= 4
        return real(fd, view)

    monkeypatch.setattr(disk, "write", flip)
    with pytest.raises(WriteMismatch, match=r"^data: "):
        write(tmp_path / "data", data_of(size))


@pytest.mark.usefixtures("fast")
def test_a_kill_during_a_direct_write_leaves_part_of_the_file(tmp_path: Path) -> None:
    data = data_of(3 * BLOCK_BYTES)
    with Recording(tmp_path, kill_at=3), pytest.raises(Killed):
        write(tmp_path / "data", data)
    assert (tmp_path / "data").read_bytes() == data[: BLOCK_BYTES + BLOCK_BYTES // 2]


def test_consecutive_files_share_one_buffer_and_concurrent_ones_never_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "first", b"first")
    new: list[mmap.mmap] = []

    def new_block() -> mmap.mmap:
        new.append(mmap.mmap(-1, BLOCK_BYTES))
        return new[-1]

    monkeypatch.setattr(data_file, "_new_block", new_block)
    write(tmp_path / "second", b"second")
    assert not new
    one, other = DataFile(tmp_path / "one"), DataFile(tmp_path / "other")
    assert len(new) == 1
    one.append_data(b"one")
    other.append_data(b"other")
    for file in (one, other):
        file.finish_file()
        file.close()
    found = [(tmp_path / name).read_bytes() for name in ("first", "second", "one", "other")]
    assert found == [b"first", b"second", b"one", b"other"]
