"""A failed commit is undone: everything is as before, even if the undo is interrupted."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from procsv.services.checkpoint.store.intent import INTENT
from tests.support.interrupted import DATA, INDEX, META, Interrupted, whole
from tests.support.power_loss import Recording, aftermaths, read_tree, write_tree


@pytest.fixture
def shop(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path / "logdir")


def fail(shop: Interrupted, **changes: Any) -> None:
    """Let a commit fail at its last step: the directory of its `checkpoint` file does not exist."""
    with pytest.raises(FileNotFoundError):
        shop.commit(9, state_file=str(shop.logdir / "gone" / "checkpoint"), state_before=None, **changes)


def test_a_failed_first_commit_leaves_nothing(shop: Interrupted) -> None:
    fail(shop)
    assert shop.files() == {}
    assert shop.area.is_empty()


def test_a_commit_that_cannot_write_its_intent_leaves_nothing(shop: Interrupted) -> None:
    staging, intent = shop.begin(1)
    (staging / INTENT).mkdir()
    with pytest.raises(IsADirectoryError):
        shop.area.commit(staging, intent)
    assert shop.files() == {}
    assert shop.area.is_empty()


@pytest.mark.parametrize("suffixes", [(DATA, INDEX), (DATA, INDEX, META), (".data-00000-of-00002", INDEX)])
def test_a_failed_commit_restores_the_checkpoint_that_it_replaced(shop: Interrupted, suffixes: tuple[str, ...]) -> None:
    shop.commit(1, suffixes=suffixes)
    fail(shop)
    assert shop.files() == whole(1, suffixes=suffixes)
    assert shop.area.is_empty()


def test_a_failed_commit_deletes_nothing(shop: Interrupted) -> None:
    shop.commit(1, "m-1")
    fail(shop, delete=(str(shop.logdir / "m-1"),))
    assert shop.files() == whole(1, "m-1")
    assert shop.listed() == ["m-1"]


@pytest.mark.parametrize("suffixes", [(DATA, INDEX), (DATA, INDEX, META), (".data-00000-of-00002", INDEX)])
def test_an_undo_interrupted_by_a_kill_or_a_power_loss_leaves_one_checkpoint_whole(
    shop: Interrupted, suffixes: tuple[str, ...]
) -> None:
    shop.commit(1, suffixes=suffixes)
    staging, intent = shop.begin(2)
    start = read_tree(shop.logdir)
    with Recording(shop.logdir) as recording:
        shop.area.commit(staging, intent)
    renames = [op.path if op.what == "rename" else "" for op in recording.ops]
    last = renames.index("checkpoint") + 1  # the failing call
    write_tree(shop.logdir, start)
    with (
        Recording(shop.logdir, fail_from=last, fail_count=1, error=errno.EIO) as failed,
        pytest.raises(OSError, match="Input/output"),
    ):
        shop.area.commit(staging, intent)
    assert shop.files() == whole(1, suffixes=suffixes)
    states = list(aftermaths(start, failed.ops))
    assert len(states) > 50, "the disk was not watched"
    for count, _, tree in states:
        write_tree(shop.logdir, tree)
        for leftover in shop.logdir.glob(".*.new"):  # as the store does when it starts
            leftover.unlink()
        shop.area.recover_commits()
        assert shop.files() in (whole(1, suffixes=suffixes), whole(2)), f"call {count}"
        assert shop.listed() == ["m-7"]
        assert shop.area.is_empty()
