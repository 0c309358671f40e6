"""The progress counter of jobs moves with disk work."""

from __future__ import annotations

from pathlib import Path

from procsv.base.system import disk, progress_counter
from procsv.services.checkpoint.format.manifest import sum_file


def test_disk_changes_and_large_reads_move_the_count(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    seen = [progress_counter.value()]
    disk.write_file(source, (b"x",), durable=False)
    seen.append(progress_counter.value())
    disk.fsync_path(source)
    seen.append(progress_counter.value())
    disk.rename(source, target)
    seen.append(progress_counter.value())
    sum_file(target)
    seen.append(progress_counter.value())
    disk.unlink(target)
    seen.append(progress_counter.value())
    assert len(set(seen)) == len(seen)


def test_a_process_that_cannot_be_inspected_has_no_count(tmp_path: Path) -> None:
    before = progress_counter.value()
    with progress_counter.untracked():
        assert progress_counter.value() is None
        with progress_counter.untracked():
            pass
        assert progress_counter.value() is None
    assert progress_counter.value() not in (None, before)
