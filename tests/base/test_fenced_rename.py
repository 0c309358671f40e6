"""A fenced rename works while the fence is ours and changes nothing once its directory is gone."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from procsv.base.system import disk
from procsv.base.system.fenced_rename import Fenced, FencedRename

MARK = "mark"


@pytest.fixture
def fence(tmp_path: Path) -> FencedRename:
    made = FencedRename(tmp_path / "fence", MARK)
    made.home.mkdir()
    (made.home / MARK).touch()
    (made.home / "staged").write_bytes(b"new")
    (tmp_path / "target").write_bytes(b"old")
    return made


def target_of(fence: FencedRename) -> Path:
    return fence.home.parent / "target"


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of all files synced from now on."""
    names = list[str]()
    monkeypatch.setattr(disk, "fsync", lambda fd: names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))  # noqa: PTH115
    monkeypatch.setattr(disk, "fsync_path", lambda path: names.append(path.name))
    return names


def test_placing_moves_a_file_and_succeeds_again_when_it_is_already_in_place(fence: FencedRename) -> None:
    for _ in range(2):
        fence.place("staged", target_of(fence))
        assert target_of(fence).read_bytes() == b"new"


@pytest.mark.parametrize("durable", [{}, {"durable": False}])
def test_putting_replaces_the_old_file_and_syncs_it_and_its_name_if_it_must_last(
    fence: FencedRename, monkeypatch: pytest.MonkeyPatch, durable: dict[str, bool]
) -> None:
    names = synced(monkeypatch)
    fence.put(target_of(fence), iter([b"n", b"ew"]), mode=0o600, **durable)
    assert target_of(fence).read_bytes() == b"new"
    assert target_of(fence).stat().st_mode & 0o777 == 0o600
    assert names == ([] if durable else [".draft.target", fence.home.parent.name])


def test_a_removed_file_goes_to_the_pen_and_stays_away_once_that_is_synced(
    fence: FencedRename, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = synced(monkeypatch)
    for _ in range(2):
        fence.remove(target_of(fence))
        assert not target_of(fence).exists()
    assert (fence.home / ".away.target").read_bytes() == b"old"
    for _ in range(2):
        fence.flush_removals()
    assert names == ["fence"]


def test_what_cannot_be_moved_is_deleted(fence: FencedRename, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another filesystem")

    names = synced(monkeypatch)
    monkeypatch.setattr(disk, "rename", refuse)
    fence.remove(target_of(fence))
    fence.flush_removals()
    assert not target_of(fence).exists()
    assert names == []
    target_of(fence).touch()
    (fence.home / MARK).unlink()
    with pytest.raises(Fenced):
        fence.remove(target_of(fence))
    assert target_of(fence).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda fence: fence.place("staged", target_of(fence)),
        lambda fence: fence.put(target_of(fence), b"new"),
        lambda fence: fence.remove(target_of(fence)),
        FencedRename.check_fence,
    ],
    ids=["place", "put", "remove", "check"],
)
@pytest.mark.parametrize("mark", [MARK, ""])
def test_nothing_changes_once_another_process_has_taken_the_fence(
    fence: FencedRename, mark: str, change: Callable[[FencedRename], None]
) -> None:
    ours = FencedRename(fence.home, mark)
    ours.check_fence()
    disk.remove_tree(fence.home)
    with pytest.raises(Fenced, match=re.escape(str(fence.home))):
        change(ours)
    assert target_of(fence).read_bytes() == b"old"


def test_sweeping_part_of_a_draft_changes_nothing_else(fence: FencedRename, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = disk.rename

    def sweep(source: Path, target: Path) -> None:
        source.unlink()
        rename(source, target)

    monkeypatch.setattr(disk, "rename", sweep)
    fence.put(target_of(fence), b"new")
    assert target_of(fence).read_bytes() == b"old"


def test_a_missing_directory_is_an_error_and_not_a_takeover(fence: FencedRename) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        fence.put(fence.home.parent / "gone" / "target", b"new")
    assert not isinstance(caught.value, Fenced)
