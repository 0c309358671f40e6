"""Clean-up removes everything that a run creates and touches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER
from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.paths import RunPaths, make_private_dir
from procsv.base.system.locks import FileLock
from procsv.ipc.messaging.summary_messages import parcel_name
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.ipc.shm.slot_file import SlotPool
from tests.ipc.messaging.networks import RUN
from tests.support.fake_clock import FakeClock


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "logs", tmp_path / "run", tmp_path / "shm")
    make_private_dir(paths.run_dir)
    make_private_dir(paths.shm_dir)
    return paths


def lay_out(paths: RunPaths) -> None:
    """Create everything that a run creates, in the way that it does."""
    clock = FakeClock()
    for socket in (paths.control_socket, paths.service_socket(CHECKPOINT), paths.service_socket(SUMMARY)):
        socket.touch()
    for path in (paths.run_lock, paths.writer_lock(TRAINER), paths.service_lock(SUMMARY)):
        lock = FileLock(path)
        assert lock.try_acquire("x", clock.wall())
        lock.release_lock()
    HeartbeatWriter(paths.heartbeat(TRAINER, 3)).close()
    for path in (paths.last_words(TRAINER, 3), paths.event_position("3-0"), paths.run_dir / "caches.trainer.json"):
        path.touch()
        path.with_name(f".{path.name}.new").touch()  # left by a kill within replace_file
    pool = SlotPool(paths.shm_dir, RUN, TRAINER, 3)
    pool.reserve(1000)
    pool.close()
    (paths.shm_dir / parcel_name("3-0", 7)).touch()
    (paths.shm_dir / "meta.3").touch()
    (paths.shm_dir / "staged.3.1" / "deep").mkdir(parents=True)
    (paths.shm_dir / "staged.3.1" / "model.ckpt-1.index").touch()


def test_nothing_that_a_run_creates_is_left(paths: RunPaths) -> None:
    lay_out(paths)
    remove_run_files(paths)
    remove_shm_files(paths)
    remove_dirs(paths)

    assert not paths.run_dir.exists()
    assert not paths.shm_dir.exists()


def test_nothing_is_left_if_snapshots_are_in_the_run_directory(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "logs", tmp_path / "run", tmp_path / "run" / "shm")
    make_private_dir(paths.run_dir)
    make_private_dir(paths.shm_dir)
    lay_out(paths)
    remove_run_files(paths)
    remove_shm_files(paths)
    remove_dirs(paths)

    assert not paths.run_dir.exists()


def test_files_to_keep_are_kept(paths: RunPaths) -> None:
    lay_out(paths)
    remove_run_files(paths, keep=frozenset({paths.run_lock}))
    remove_dirs(paths)

    assert list(paths.run_dir.iterdir()) == [paths.run_lock]


def test_a_foreign_file_stays_and_so_does_its_directory(paths: RunPaths) -> None:
    lay_out(paths)
    for directory in (paths.run_dir, paths.shm_dir):
        (directory / "thesis.tex").touch()
        (directory / "staged").mkdir()
    remove_run_files(paths)
    remove_shm_files(paths)
    remove_dirs(paths)

    for directory in (paths.run_dir, paths.shm_dir):
        assert sorted(path.name for path in directory.iterdir()) == ["staged", "thesis.tex"]


def test_cleaning_up_nothing_does_nothing(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "logs", tmp_path / "run", tmp_path / "shm")
    remove_run_files(paths)
    remove_shm_files(paths)
    remove_dirs(paths)
