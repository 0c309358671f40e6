"""A pen: what it changes as long as it is ours, and that it changes nothing once its directory is gone."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from procsv.base.system import disk
from procsv.base.system.pen import Fenced, FencedRename

MARK = "mark"


@pytest.fixture
def pen(tmp_path: Path) -> FencedRename:
    made = FencedRename(tmp_path / "pen", MARK)
    made.home.mkdir()
    (made.home / MARK).touch()
    (made.home / "staged").write_bytes(b"new")
    (tmp_path / "target").write_bytes(b"old")
    return made


def target_of(pen: FencedRename) -> Path:
    return pen.home.parent / "target"


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced from now on."""
    names = list[str]()
    monkeypatch.setattr(disk, "fsync", lambda fd: names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))  # noqa: PTH115
    monkeypatch.setattr(disk, "fsync_path", lambda path: names.append(path.name))
    return names


def test_what_is_placed_moves_and_is_there_when_it_is_placed_again(pen: FencedRename) -> None:
    for _ in range(2):
        pen.place("staged", target_of(pen))
        assert target_of(pen).read_bytes() == b"new"


@pytest.mark.parametrize("durable", [{}, {"durable": False}])
def test_what_is_put_replaces_the_old_file_and_is_synced_with_its_name_if_it_is_to_last(
    pen: FencedRename, monkeypatch: pytest.MonkeyPatch, durable: dict[str, bool]
) -> None:
    names = synced(monkeypatch)
    pen.put(target_of(pen), iter([b"n", b"ew"]), mode=0o600, **durable)
    assert target_of(pen).read_bytes() == b"new"
    assert target_of(pen).stat().st_mode & 0o777 == 0o600
    assert names == ([] if durable else [".draft.target", pen.home.parent.name])


def test_what_is_taken_away_lies_in_the_pen_and_stays_away_once_that_is_synced(
    pen: FencedRename, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = synced(monkeypatch)
    for _ in range(2):
        pen.take_away(target_of(pen))
        assert not target_of(pen).exists()
    assert (pen.home / ".away.target").read_bytes() == b"old"
    for _ in range(2):
        pen.settle()
    assert names == ["pen"]


def test_what_cannot_be_moved_is_removed(pen: FencedRename, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another filesystem")

    names = synced(monkeypatch)
    monkeypatch.setattr(disk, "rename", refuse)
    pen.take_away(target_of(pen))
    pen.settle()
    assert not target_of(pen).exists()
    assert names == []
    target_of(pen).touch()
    (pen.home / MARK).unlink()
    with pytest.raises(Fenced):
        pen.take_away(target_of(pen))
    assert target_of(pen).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda pen: pen.place("staged", target_of(pen)),
        lambda pen: pen.put(target_of(pen), b"new"),
        lambda pen: pen.take_away(target_of(pen)),
        FencedRename.check,
    ],
    ids=["place", "put", "take away", "check"],
)
@pytest.mark.parametrize("mark", [MARK, ""])
def test_nothing_is_changed_once_somebody_has_taken_it(
    pen: FencedRename, mark: str, change: Callable[[FencedRename], None]
) -> None:
    ours = FencedRename(pen.home, mark)
    ours.check()
    disk.remove_tree(pen.home)
    with pytest.raises(Fenced, match=re.escape(str(pen.home))):
        change(ours)
    assert target_of(pen).read_bytes() == b"old"


def test_a_draft_that_is_swept_while_the_rest_of_it_still_stands_changes_nothing(
    pen: FencedRename, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = disk.rename

    def sweep(source: Path, target: Path) -> None:
        source.unlink()
        rename(source, target)

    monkeypatch.setattr(disk, "rename", sweep)
    pen.put(target_of(pen), b"new")
    assert target_of(pen).read_bytes() == b"old"


def test_a_directory_that_is_gone_is_an_error_and_no_takeover(pen: FencedRename) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        pen.put(pen.home.parent / "gone" / "target", b"new")
    assert not isinstance(caught.value, Fenced)
