"""The count of how far jobs have come."""

from __future__ import annotations

from pathlib import Path

from procsv.ipc import disk, headway
from procsv.services.checkpoint.manifest import sum_file


def test_whatever_is_done_to_a_disk_moves_the_count_and_so_does_reading_what_is_large(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    seen = [headway.made()]
    disk.write_file(source, (b"x",), durable=False)
    seen.append(headway.made())
    disk.fsync_path(source)
    seen.append(headway.made())
    disk.rename(source, target)
    seen.append(headway.made())
    sum_file(target)
    seen.append(headway.made())
    disk.unlink(target)
    seen.append(headway.made())
    assert len(set(seen)) == len(seen)


def test_within_what_nobody_can_see_into_there_is_no_count(tmp_path: Path) -> None:
    before = headway.made()
    with headway.out_of_sight():
        assert headway.made() is None
        with headway.out_of_sight():
            pass
        assert headway.made() is None
    assert headway.made() not in (None, before)
