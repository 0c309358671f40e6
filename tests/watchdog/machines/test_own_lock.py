"""A launch names the directory that it has locked, so that others can tell which of two launches is dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.base.system import failpoints
from procsv.base.system.locks import DirectoryLock
from procsv.ipc.messaging.member_messages import LaunchLock
from procsv.watchdog.machines.joining import describe_lock


def take(directory: Path, now_s: float) -> LaunchLock | None:
    """Lock the directory as a launch that ends at once."""
    lock = DirectoryLock(directory)
    try:
        assert lock.try_acquire()
        return describe_lock(lock, now_s)
    finally:
        lock.release_lock()


def test_the_later_holder_of_a_directory_succeeds_the_earlier_one_and_no_other(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first, second, elsewhere = take(tmp_path, 1.0), take(tmp_path, 2.0), take(other, 3.0)

    assert first is not None
    assert second is not None
    assert elsewhere is not None
    assert second.follows(first)
    assert not first.follows(second)
    assert not second.follows(second)
    assert not elsewhere.follows(second)


def test_a_filesystem_without_locks_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_plan", failpoints.parse("locks.directory=enolck"))

    assert take(tmp_path, 1.0) is None
