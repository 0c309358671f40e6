"""The lock that a killed attempt left on a dataset's file cache is removed, and no other lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.training.process.cache_locks import CacheLocks


class Writer:
    """The files of TensorFlow while it writes a cache, as left by one attempt."""

    def __init__(self, directory: Path, name: str = "cache") -> None:
        self.lock = directory / f"{name}_0.lockfile"
        self.lock.write_text("Created at: 1")
        self._data = (directory / f"{name}_0.data-00000-of-00001.tempstate7").open("w")
        self.data = Path(self._data.name)

    def die(self) -> None:
        self._data.close()


def test_the_next_attempt_removes_the_lock_of_a_killed_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = CacheLocks(tmp_path / "notes")
    first.use_cache(str(tmp_path / "cache"))
    writer = Writer(tmp_path)
    first.note_locks(0.0)
    writer.die()
    CacheLocks(tmp_path / "notes").use_cache(str(tmp_path / "cache"))
    assert not writer.lock.exists()
    assert not writer.data.exists()
    assert capfd.readouterr().err.startswith(f"procsv: removed {writer.lock}: ")


def test_a_cache_that_is_named_through_a_symbolic_link_is_the_same_cache(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first = CacheLocks(tmp_path / "notes")
    first.use_cache(str(tmp_path / "link" / "cache"))
    writer = Writer(tmp_path / "link")
    first.note_locks(0.0)
    writer.die()
    CacheLocks(tmp_path / "notes").use_cache(str(tmp_path / "link" / "cache"))
    assert not writer.lock.exists()


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_lock_that_may_not_be_a_killed_attempts_is_left_alone_and_named(
    is_noted: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = CacheLocks(tmp_path / "notes")
    first.use_cache(str(tmp_path / "cache"))
    writer = Writer(tmp_path)
    if is_noted:  # another program has created the lock since
        first.note_locks(0.0)
        writer.die()
        writer.lock.rename(tmp_path / "old")
        writer.lock.write_text("Created at: 2")
    CacheLocks(tmp_path / "notes").use_cache(str(tmp_path / "cache"))
    assert writer.lock.exists()
    assert writer.data.exists()
    assert f"{writer.lock} " in capfd.readouterr().err
    writer.die()


def test_this_attempts_lock_and_other_caches_locks_are_not_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    locks, writer, other = CacheLocks(tmp_path / "notes"), None, Writer(tmp_path, "cache2")
    locks.use_cache(str(tmp_path / "cache"))
    writer = Writer(tmp_path)
    locks.note_locks(0.0)
    locks.use_cache(str(tmp_path / "cache"))
    assert writer.lock.exists()
    assert other.lock.exists()
    assert capfd.readouterr().err == ""
    writer.die()
    other.die()


def test_an_attempt_that_dies_before_it_writes_leaves_the_previous_note(tmp_path: Path) -> None:
    first = CacheLocks(tmp_path / "notes")
    first.use_cache(str(tmp_path / "cache"))
    writer = Writer(tmp_path)
    first.note_locks(0.0)
    writer.die()
    CacheLocks(tmp_path / "notes").note_locks(0.0)  # killed before the program reached its cache
    CacheLocks(tmp_path / "notes").use_cache(str(tmp_path / "cache"))
    assert not writer.lock.exists()
