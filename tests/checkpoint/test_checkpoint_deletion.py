"""Checkpoints are deleted in a safe order, an interrupted deletion is finished, and nothing else is deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from procsv.base.system import disk
from procsv.services.checkpoint.store.commit import delete_durably, finish_deletions
from tests.support.interrupted import DATA, INDEX, MANIFEST, META, Interrupted, whole
from tests.support.power_loss import Recording

EVERYTHING = (DATA, INDEX, META)


@pytest.fixture
def shop(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path / "logdir")


def finish(shop: Interrupted, *listed: str) -> None:
    finish_deletions(shop.logdir, "m", {str(shop.logdir / name) for name in listed})


def test_a_checkpoint_without_a_recorded_deletion_is_deleted_in_three_synced_steps(shop: Interrupted) -> None:
    shop.commit(1, suffixes=EVERYTHING)
    with Recording(shop.logdir) as recording:
        delete_durably(str(shop.logdir / "m-7"))
    done = [op.path if op.what == "unlink" else op.what for op in recording.ops]
    data = {f"m-7{DATA}", f"m-7{META}"}
    assert done[:2] == [f"m-7{INDEX}", "fsync"]
    assert set(done[2:4]) == data
    assert done[4:] == ["fsync", f"m-7{MANIFEST}", "fsync"]
    assert shop.files() == {}


def test_a_commit_syncs_its_deletions_before_it_removes_its_intent(shop: Interrupted) -> None:
    shop.commit(1, "m-1")
    staging, intent = shop.begin(2, delete=(str(shop.logdir / "m-1"),))
    with Recording(shop.logdir) as recording:
        assert shop.area.commit(staging, intent) == []
    done = [(op.what, op.path) for op in recording.ops]
    last = max(at for at, (what, path) in enumerate(done) if what == "rename" and "/.away.m-1" in path)
    over = done.index(("unlink", "procsv/staging/2/intent.json"))
    assert {("fsync", "."), ("fsync", "procsv/staging/2")} <= set(done[last:over])
    assert shop.files() == whole(2)


def test_a_commit_does_not_delete_what_it_lists(shop: Interrupted) -> None:
    shop.commit(1, "m-1")
    both = (str(shop.logdir / "m-1"), str(shop.logdir / "m-7"))
    assert shop.commit(2, listed=both, delete=both[:1]) == []
    assert shop.files() == whole(1, "m-1") | whole(2)


def test_a_commit_names_the_checkpoints_it_could_not_delete_and_deletes_the_others(
    shop: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, rename = disk.unlink, disk.rename

    def refuse(path: Path, *target: Path) -> None:
        if path == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        (rename if target else unlink)(path, *target)

    for sequence, name in enumerate(("m-1", "m-2", "m-3"), 1):
        shop.commit(sequence, name)
    stuck = shop.logdir / f"m-2{INDEX}"
    monkeypatch.setattr(disk, "unlink", refuse)
    monkeypatch.setattr(disk, "rename", refuse)
    old = tuple(str(shop.logdir / name) for name in ("m-1", "m-2", "m-3"))
    assert shop.commit(4, delete=old) == [old[1]]
    assert shop.files() == whole(2, "m-2") | whole(4)
    assert shop.listed() == ["m-7"]


def test_each_interrupted_deletion_is_finished_and_nothing_else_is_deleted(shop: Interrupted) -> None:
    names = [f"m-{number}" for number in range(1, 31)]  # their order is unknown
    for sequence, name in enumerate(names, 1):
        shop.commit(sequence, name, suffixes=EVERYTHING)
    before, cut, garbled, unreadable = shop.files(), names[::3], names[1::6], names[4::6]
    for name in (*cut, *garbled, *unreadable):
        (shop.logdir / f"{name}{INDEX}").unlink()
    for name in garbled:
        (shop.logdir / f"{name}{MANIFEST}").write_text('{"sequence": "garbled"}')
    for name in unreadable:
        (shop.logdir / f"{name}{MANIFEST}").unlink()
        (shop.logdir / f"{name}{MANIFEST}").mkdir()
    finish(shop)
    left = shop.files()
    for name in names:
        there = {suffix for suffix in (*EVERYTHING, MANIFEST) if name + suffix in left}
        if name in cut:
            assert there == set()
        elif name in garbled:
            assert there == {DATA, META, MANIFEST}
        elif name in unreadable:
            assert there == {DATA, META}
        else:
            assert there == {*EVERYTHING, MANIFEST}
    assert left.keys() <= before.keys()


def test_a_listed_checkpoint_is_not_deleted_even_without_its_index(shop: Interrupted) -> None:
    shop.commit(1)
    (shop.logdir / f"m-7{INDEX}").unlink()
    finish(shop, "m-7")
    assert f"m-7{DATA}" in shop.files()


def test_for_a_foreign_checkpoint_without_an_index_only_the_manifest_is_deleted(shop: Interrupted) -> None:
    shop.commit(1, "other-7")
    (shop.logdir / f"other-7{INDEX}").unlink()
    finish(shop)
    assert shop.files() == {f"other-7{DATA}": f"{DATA} of 1"}


def test_a_checkpoint_that_never_had_an_index_is_left_alone(shop: Interrupted) -> None:
    shop.commit(1, suffixes=("",))
    finish(shop)
    assert shop.files() == whole(1, suffixes=("",))


def test_a_manifest_under_another_name_than_its_checkpoint_is_left_alone(shop: Interrupted) -> None:
    shop.commit(1)
    (shop.logdir / f"m-copy{MANIFEST}").write_bytes((shop.logdir / f"m-7{MANIFEST}").read_bytes())
    finish(shop)
    assert shop.files() == whole(1) | {f"m-copy{MANIFEST}": "1"}
