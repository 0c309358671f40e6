"""Tidying: all that a run leaves is known by name, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.clock import FakeClock
from procsv.base.locks import FileLock
from procsv.base.run.cleanup import remove_dirs, remove_run_files, remove_shm_files
from procsv.base.run.paths import Places, make_private_dir
from procsv.ipc.messaging.event_backlog import parcel_name
from procsv.ipc.shm.heartbeat import PulseWriter
from procsv.ipc.shm.slot_file import Arena
from tests.ipc.networks import RUN


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places(tmp_path / "logs", tmp_path / "run", tmp_path / "shm")
    make_private_dir(places.run_dir)
    make_private_dir(places.shm_dir)
    return places


def lay_out(places: Places) -> None:
    """Everything that a run makes, as it makes it."""
    clock = FakeClock()
    for socket in (places.control_socket, places.service_socket("checkpoint"), places.service_socket("summary")):
        socket.touch()
    for path in (places.run_lock, places.writer_lock, places.service_lock("summary")):
        lock = FileLock(path)
        assert lock.try_acquire("x", clock.wall())
        lock.let_go()
    PulseWriter(places.pulse("trainer", 3)).close()
    for path in (places.last_words(3), places.event_position("3-0")):
        path.touch()
        path.with_name(f".{path.name}.new").touch()  # killed within replace_file
    arena = Arena(places.shm_dir, RUN, 3)
    arena.reserve(1000)
    arena.close()
    (places.shm_dir / parcel_name("3-0", 7)).touch()
    (places.shm_dir / "meta.3").touch()
    (places.shm_dir / "staged.3.1" / "deep").mkdir(parents=True)
    (places.shm_dir / "staged.3.1" / "model.ckpt-1.index").touch()


def test_nothing_that_a_run_makes_is_left(places: Places) -> None:
    lay_out(places)
    remove_run_files(places)
    remove_shm_files(places)
    remove_dirs(places)

    assert not places.run_dir.exists()
    assert not places.shm_dir.exists()


def test_where_snapshots_lie_in_the_run_directory_nothing_is_left_either(tmp_path: Path) -> None:
    places = Places(tmp_path / "logs", tmp_path / "run", tmp_path / "run" / "shm")
    make_private_dir(places.run_dir)
    make_private_dir(places.shm_dir)
    lay_out(places)
    remove_run_files(places)
    remove_shm_files(places)
    remove_dirs(places)

    assert not places.run_dir.exists()


def test_what_is_to_be_kept_is_kept(places: Places) -> None:
    lay_out(places)
    remove_run_files(places, keep=frozenset({places.run_lock}))
    remove_dirs(places)

    assert list(places.run_dir.iterdir()) == [places.run_lock]


def test_what_is_none_of_ours_stays_and_so_does_its_directory(places: Places) -> None:
    lay_out(places)
    for directory in (places.run_dir, places.shm_dir):
        (directory / "thesis.tex").touch()
        (directory / "staged").mkdir()
    remove_run_files(places)
    remove_shm_files(places)
    remove_dirs(places)

    for directory in (places.run_dir, places.shm_dir):
        assert sorted(path.name for path in directory.iterdir()) == ["staged", "thesis.tex"]


def test_where_nothing_is_there_is_nothing_to_do(tmp_path: Path) -> None:
    places = Places(tmp_path / "logs", tmp_path / "run", tmp_path / "shm")
    remove_run_files(places)
    remove_shm_files(places)
    remove_dirs(places)
