"""A run directory's id is created once, survives relaunches and moves, and is never shared with a
copy or another user.
"""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths, has_name, keep_name, make_paths
from procsv.base.run.run_id import IdFile, find_id, id_file, id_here, make_id

STRANGER = 54321
OURS = IdFile("0123456789abcdef", 8, 1000)


@pytest.mark.parametrize(
    ("device", "inode", "is_owners", "is_said"),
    [(8, 1000, True, True), (8, 1001, True, False), (9, 1000, True, False), (8, 1000, False, False)],
    ids=["its own place", "a copy", "a clone of the disk", "another user's file"],
)
def test_the_id_is_stable_where_its_owner_created_it_and_everywhere_else_another_stable_id_is_used(
    device: int, inode: int, is_owners: bool, is_said: bool
) -> None:
    here = id_here(OURS, device, inode, is_owners=is_owners)
    assert (here == OURS.id) is is_said
    assert here == id_here(OURS, device, inode, is_owners=is_owners)
    assert len(here) == len(OURS.id)


def test_a_relaunch_and_a_move_keep_the_id_and_a_copy_or_a_new_directory_gets_another(tmp_path: Path) -> None:
    original = make_id(tmp_path / "run" / "procsv")
    assert make_id(tmp_path / "run" / "procsv") == original
    before = find_paths(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "run").rename(tmp_path / "moved")

    assert find_id(tmp_path / "moved" / "procsv") == original
    moved, copied = find_paths(tmp_path / "moved"), find_paths(tmp_path / "copy")
    assert (moved.run_dir, moved.shm_dir) == (before.run_dir, before.shm_dir)
    assert {copied.run_dir, copied.shm_dir}.isdisjoint({before.run_dir, before.shm_dir})
    assert make_id(tmp_path / "copy" / "procsv") == copied.id
    assert make_id(tmp_path / "run" / "procsv") not in (original, copied.id)


def test_launches_that_start_at_the_same_time_get_one_id(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def begin(_: int) -> str:
        together.wait()
        return make_id(tmp_path / "procsv")

    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(begin, range(8)))) == 1
        assert [path.name for path in (tmp_path / "procsv").iterdir()] == ["id.json"]
        shutil.rmtree(tmp_path / "procsv")


def test_a_directory_that_was_deleted_under_its_run_leads_to_it_again(tmp_path: Path) -> None:
    ours = make_paths(tmp_path)
    ours.home.rename(tmp_path / "gone")  # while it exists, no other directory gets its inode
    assert not has_name(ours)
    make_id(ours.home)
    assert not has_name(ours)
    keep_name(ours)
    assert has_name(ours)
    assert find_paths(tmp_path) == ours


@pytest.mark.parametrize("content", ["", "{}", "garbled", '{"id":"../../etc","device":1,"inode":1}'])
def test_a_damaged_id_is_ignored_and_the_next_launch_creates_another(tmp_path: Path, content: str) -> None:
    id_file(tmp_path).write_text(content)
    assert find_id(tmp_path) == ""
    made = make_id(tmp_path)
    assert find_id(tmp_path) == made
    assert (tmp_path / "id.json.damaged").read_text() == content


def test_a_link_in_place_of_the_id_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    theirs = make_id(tmp_path / "b")
    id_file(tmp_path / "a").symlink_to(id_file(tmp_path / "b"))
    assert find_id(tmp_path / "a") == ""
    assert make_id(tmp_path / "a") != theirs


def test_a_filesystem_without_hard_links_has_an_id_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = make_id(tmp_path)
    assert made
    assert make_id(tmp_path) == made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_an_id_written_by_another_user_names_none_of_our_runs(tmp_path: Path) -> None:
    ours = make_id(tmp_path)
    os.chown(id_file(tmp_path), STRANGER, STRANGER)
    assert find_id(tmp_path) != ours
    assert find_id(tmp_path, STRANGER) == ours


def test_a_url_needs_no_id_and_losing_its_home_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths = make_paths("gs://bucket/run")
    paths.home.mkdir(parents=True)
    assert make_paths("gs://bucket/run/") == paths
    assert has_name(paths)
    keep_name(paths)
    assert list(paths.home.iterdir()) == []
    assert find_paths(paths.logdir) == paths
