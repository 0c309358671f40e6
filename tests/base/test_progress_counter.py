"""The count of how far jobs have come."""

from __future__ import annotations

from pathlib import Path

from procsv.base.system import disk, progress_counter
from procsv.services.checkpoint.store.manifest import sum_file


def test_whatever_is_done_to_a_disk_moves_the_count_and_so_does_reading_what_is_large(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    seen = [progress_counter.made()]
    disk.write_file(source, (b"x",), durable=False)
    seen.append(progress_counter.made())
    disk.fsync_path(source)
    seen.append(progress_counter.made())
    disk.rename(source, target)
    seen.append(progress_counter.made())
    sum_file(target)
    seen.append(progress_counter.made())
    disk.unlink(target)
    seen.append(progress_counter.made())
    assert len(set(seen)) == len(seen)


def test_within_what_nobody_can_see_into_there_is_no_count(tmp_path: Path) -> None:
    before = progress_counter.made()
    with progress_counter.out_of_sight():
        assert progress_counter.made() is None
        with progress_counter.out_of_sight():
            pass
        assert progress_counter.made() is None
    assert progress_counter.made() not in (None, before)
