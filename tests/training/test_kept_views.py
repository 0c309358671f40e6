"""A server copies its captured variables into the chief's slot and writes nothing else."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from procsv.training.servers import NO_STEP, PIECE_BYTES, CaptureOrder, CaptureRefused, KeptViews

HELD, IN_PLACE = 1, 0


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="procsv-test-") as directory:
        yield Path(directory)


def slot_in(shm: Path, size: int, name: str = "slot.chief.1.0") -> Path:
    path = shm / name
    path.write_bytes(bytes(size))
    return path


def order(path: Path | None, number: int = 1, owner: str = "one") -> bytes:
    if path is None:
        return msgspec.msgpack.encode(CaptureOrder(owner, number))
    info = path.stat()
    return msgspec.msgpack.encode(CaptureOrder(owner, number, str(path), info.st_dev, info.st_ino))


def places(*rows: tuple[int, int, int]) -> Any:
    return np.array(rows, np.int64)


def copy_all(kept: KeptViews, said: bytes) -> tuple[int, list[int]]:
    """Return the number of pieces and the hashes."""
    for pieces in range(1, 1000):
        left, *hashes = kept.copy(said).tolist()
        if not left:
            return pieces, np.array(hashes, np.int64).view(np.uint64).tolist()
    raise AssertionError("it never ends")


def test_views_are_copied_piece_by_piece_and_hashed_as_they_are_in_the_slot(shm: Path) -> None:
    large = np.arange(PIECE_BYTES * 5 // 2, dtype=np.uint8)
    small, empty, step = np.arange(6, dtype=np.float64).reshape(2, 3), np.zeros([0]), np.array(41)
    arrays: list[Any] = [large, small, empty, step]
    offsets = [4096, 4096 + large.nbytes, 4096 + large.nbytes + 64, 4096 + large.nbytes + 128]
    path = slot_in(shm, offsets[-1] + 8)
    kept = KeptViews(shm)
    rows = [(offset, array.nbytes, HELD) for offset, array in zip(offsets, arrays, strict=True)]
    assert kept.capture_views(order(path), places(*rows), 3, *arrays) == 41
    pieces, hashes = copy_all(kept, order(path))
    assert pieces == 3
    data = path.read_bytes()
    for offset, array, digest in zip(offsets, arrays, hashes, strict=True):
        there = data[offset : offset + array.nbytes]
        assert there == array.tobytes()
        assert digest == xxhash.xxh3_64_intdigest(there)
    assert copy_all(kept, order(path)) == (1, hashes), "asked again, as other servers were not done yet"


def test_a_variable_that_changes_in_place_is_copied_when_it_is_captured(shm: Path) -> None:
    path, array = slot_in(shm, 5000), np.ones(10)
    kept = KeptViews(shm)
    assert kept.capture_views(order(path), places((4096, 80, IN_PLACE)), -1, array) == NO_STEP
    array[:] = 2.0
    copy_all(kept, order(path))
    assert path.read_bytes()[4096 : 4096 + 80] == np.ones(10).tobytes()


def test_only_the_exact_file_that_the_chief_means_is_written(shm: Path, tmp_path: Path) -> None:
    kept, array = KeptViews(shm), np.ones(10)
    elsewhere = slot_in(tmp_path, 5000)
    with pytest.raises(CaptureRefused, match=re.escape(str(elsewhere))):
        kept.capture_views(order(elsewhere), places((4096, 80, HELD)), -1, array)
    path = slot_in(shm, 5000)
    said = order(path)
    path.rename(shm / "another")
    with pytest.raises(CaptureRefused, match="No such file"):
        kept.capture_views(said, places((4096, 80, HELD)), -1, array)
    slot_in(shm, 5000)
    with pytest.raises(CaptureRefused, match="another file"):
        kept.capture_views(said, places((4096, 80, HELD)), -1, array)


def test_a_variable_of_another_size_is_refused(shm: Path) -> None:
    with pytest.raises(CaptureRefused, match="80 bytes, not 40"):
        KeptViews(shm).capture_views(order(slot_in(shm, 5000)), places((4096, 40, HELD)), -1, np.ones(10))


def test_captures_that_were_given_up_or_ordered_by_an_earlier_session_are_dropped(shm: Path) -> None:
    kept, row = KeptViews(shm), places((4096, 80, HELD))
    first, second = slot_in(shm, 5000, "slot.chief.1.0"), slot_in(shm, 5000, "slot.chief.1.1")
    kept.capture_views(order(first, 1), row, -1, np.ones(10))
    kept.capture_views(order(second, 2), row, -1, np.ones(10))
    copy_all(kept, order(second, 2))
    with pytest.raises(CaptureRefused, match="capture 1 is not here"):
        kept.copy(order(first, 1))
    kept.capture_views(order(None, 1, "two"), row, -1, np.ones(10))
    with pytest.raises(CaptureRefused, match="capture 2 is not here"):
        kept.copy(order(second, 2))


def test_the_memory_of_a_removed_slot_is_released_with_the_next_capture(shm: Path) -> None:
    path, kept = slot_in(shm, 5000), KeptViews(shm)
    kept.capture_views(order(path), places((4096, 80, HELD)), -1, np.ones(10))
    copy_all(kept, order(path))
    assert str(path) in Path("/proc/self/maps").read_text()
    path.unlink()
    kept.capture_views(order(None, 2), places((4096, 80, HELD)), -1, np.ones(10))
    assert str(path) not in Path("/proc/self/maps").read_text()
