"""A starting service completes, undoes, removes or keeps the commits that the previous one left."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from procsv.services.checkpoint.store.intent import INTENT
from tests.support.interrupted import DATA, INDEX, MANIFEST, META, Interrupted, whole


@pytest.fixture
def shop(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path / "logdir")


def loop(path: Path) -> None:
    """Make a file that can be neither read nor inspected."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


# -- completion -------------------------------------------------------------------------------------------------
def test_a_commit_interrupted_after_its_intent_is_completed(shop: Interrupted) -> None:
    shop.interrupt(1)
    shop.area.recover_commits()
    assert shop.files() == whole(1)
    assert shop.listed() == ["m-7"]
    assert shop.area.is_empty()


def test_a_commit_interrupted_between_two_of_its_files_is_completed(shop: Interrupted) -> None:
    staging, _ = shop.interrupt(1)
    (staging / f"m-7{DATA}").rename(shop.logdir / f"m-7{DATA}")
    shop.area.recover_commits()
    assert shop.files() == whole(1)


def test_a_commit_with_its_manifest_in_place_is_listed_at_the_next_start(shop: Interrupted) -> None:
    staging, intent = shop.interrupt(1)
    shop.place(staging, intent)
    shop.write_manifest(intent)
    shop.area.recover_commits()
    assert shop.listed() == ["m-7"]
    assert shop.area.is_empty()


@pytest.mark.parametrize("there", ["an older one", "a garbled one", "none"])
def test_an_interrupted_commit_is_completed_whatever_older_manifest_is_there(shop: Interrupted, there: str) -> None:
    shop.commit(1)
    if there == "a garbled one":
        (shop.logdir / f"m-7{MANIFEST}").write_text("garbled")
    elif there == "none":
        (shop.logdir / f"m-7{MANIFEST}").unlink()
    shop.interrupt(2)
    shop.area.recover_commits()
    assert shop.files() == whole(2)
    assert shop.area.is_empty()


def test_an_interrupted_commit_is_removed_if_a_later_one_has_used_its_name(shop: Interrupted) -> None:
    shop.commit(2)
    shop.interrupt(1)
    shop.area.recover_commits()
    assert shop.files() == whole(2)
    assert shop.area.is_empty()


def test_files_that_only_the_older_checkpoint_had_are_removed(shop: Interrupted) -> None:
    shop.commit(1, suffixes=(DATA, INDEX, META))
    shop.interrupt(2)
    shop.area.recover_commits()
    assert shop.files() == whole(2)


def test_interrupted_commits_are_completed_in_order(shop: Interrupted) -> None:
    for sequence in (10, 9):
        shop.interrupt(sequence)
    shop.area.recover_commits()
    assert shop.files() == whole(10)


def test_an_interrupted_commit_performs_its_deletions(shop: Interrupted) -> None:
    shop.commit(1, "m-1")
    old = str(shop.logdir / "m-1")
    shop.interrupt(2, delete=(old,))
    shop.area.recover_commits()
    assert shop.files() == whole(2)
    assert shop.listed() == ["m-7"], "the one that was the latest is not put back"


# -- another writer's `checkpoint` file -----------------------------------------------------------------------------
def test_a_checkpoint_that_another_writer_has_since_made_the_latest_stays_the_latest_and_nothing_is_lost(
    shop: Interrupted,
) -> None:
    for sequence, name in enumerate(("m-1", "m-2"), 1):
        shop.commit(sequence, name)
    shop.write_list(shop.logdir / "m-1", shop.logdir / "m-2")
    old = [str(shop.logdir / name) for name in ("m-1", "m-2", "m-7")]
    shop.interrupt(3, listed=tuple(old[1:]), delete=(old[0],))
    shop.write_list(*old[:2], shop.logdir / "user-4", shop.logdir / "user-5")
    shop.area.recover_commits()
    assert shop.listed() == ["m-2", "user-4", "m-7", "user-5"]


def test_a_finished_intent_that_a_power_loss_brings_back_takes_nothing_from_a_later_commit(
    shop: Interrupted,
) -> None:
    staging, intent = shop.interrupt(1)
    shop.place(staging, intent)
    shop.write_manifest(intent)
    shop.commit(2, "m-9")
    shop.write_list(shop.logdir / "m-7", shop.logdir / "m-9")
    shop.area.recover_commits()
    assert shop.listed() == ["m-7", "m-9"]
    assert {name.partition(".")[0] for name in shop.files()} >= {"m-7", "m-9"}
    assert shop.area.is_empty()


@pytest.mark.parametrize("relative", [False, True])
def test_another_writer_may_list_its_checkpoints_with_relative_or_absolute_paths(
    shop: Interrupted, relative: bool
) -> None:
    shop.interrupt(1)
    shop.write_list("user-5" if relative else shop.logdir / "user-5")
    shop.area.recover_commits()
    assert shop.listed() == ["m-7", "user-5"]


@pytest.mark.parametrize("since", ["garbled", "gone"])
def test_an_interrupted_commit_replaces_a_checkpoint_file_that_was_since_garbled_or_removed(
    shop: Interrupted, since: str
) -> None:
    shop.commit(1, "m-1")
    both = (str(shop.logdir / "m-1"), str(shop.logdir / "m-7"))
    shop.interrupt(2, listed=both)
    if since == "garbled":
        (shop.logdir / "checkpoint").write_text("garbled")
    else:
        (shop.logdir / "checkpoint").unlink()
    shop.area.recover_commits()
    assert shop.listed() == ["m-1", "m-7"]


# -- undoing ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [DATA, INDEX])
@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_damaged_commit_is_undone(shop: Interrupted, suffix: str, is_placed: bool, is_lost: bool) -> None:
    shop.commit(1, "m-1")
    staging, intent = shop.interrupt(2)
    if is_placed:
        shop.place(staging, intent)
    shop.write_list(shop.logdir / "m-7")
    path = (shop.logdir if is_placed else staging) / f"m-7{suffix}"
    if is_lost:
        path.unlink()
    else:
        path.write_text("damaged")
    shop.area.recover_commits()
    assert shop.files() == whole(1, "m-1")
    assert shop.listed() == ["m-1"]
    assert shop.area.is_empty()


def test_undoing_a_damaged_first_commit_leaves_no_checkpoint_file(shop: Interrupted) -> None:
    staging, _ = shop.interrupt(1)
    shop.write_list(shop.logdir / "m-7")
    (staging / f"m-7{DATA}").write_text("damaged")
    shop.area.recover_commits()
    assert not (shop.logdir / "checkpoint").exists()


@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_damaged_commit_restores_the_checkpoint_that_it_replaced(shop: Interrupted, has_manifest: bool) -> None:
    shop.commit(1, suffixes=(DATA, INDEX, META))
    staging, intent = shop.interrupt(2)
    shop.set_aside(2)
    shop.place(staging, intent)
    if has_manifest:
        (shop.logdir / f"m-7{MANIFEST}").unlink()
        shop.write_manifest(intent)
    (shop.logdir / f"m-7{DATA}").write_text("damaged")
    shop.area.recover_commits()
    assert shop.files() == whole(1, suffixes=(DATA, INDEX, META))
    assert shop.area.is_empty()


def test_a_damaged_commit_that_had_set_nothing_aside_leaves_the_older_checkpoint_alone(shop: Interrupted) -> None:
    shop.commit(1)
    staging, _ = shop.interrupt(2)
    (staging / f"m-7{DATA}").unlink()
    shop.area.recover_commits()
    assert shop.files() == whole(1)


def test_damage_to_a_finished_commit_is_left_for_its_readers(shop: Interrupted) -> None:
    shop.finish(*shop.interrupt(1))
    (shop.logdir / f"m-7{INDEX}").write_text("damaged")
    shop.area.recover_commits()
    assert shop.files() == whole(1) | {f"m-7{INDEX}": "damaged"}
    assert shop.listed() == ["m-7"]
    assert shop.area.is_empty()


def test_a_damaged_commit_with_a_garbled_manifest_counts_as_unfinished_and_is_undone(shop: Interrupted) -> None:
    shop.finish(*shop.interrupt(1))
    (shop.logdir / f"m-7{INDEX}").write_text("damaged")
    (shop.logdir / f"m-7{MANIFEST}").write_text("garbled")
    shop.area.recover_commits()
    assert not (shop.logdir / f"m-7{INDEX}").exists()
    assert shop.listed() == []


def test_a_finished_commit_with_a_missing_file_is_undone(shop: Interrupted) -> None:
    shop.finish(*shop.interrupt(1))
    (shop.logdir / f"m-7{DATA}").unlink()
    shop.area.recover_commits()
    assert shop.files() == {}
    assert shop.listed() == []


# -- commits kept for the next start ----------------------------------------------------------------------------
def test_an_unreadable_intent_keeps_its_commit_and_no_other(shop: Interrupted) -> None:
    shop.commit(1)
    staging, _ = shop.interrupt(2, "m-7")
    shop.set_aside(2)
    intent = (staging / INTENT).read_bytes()
    loop(staging / INTENT)
    shop.interrupt(3, "m-8")
    shop.area.recover_commits()
    assert shop.files() == whole(1) | whole(3, "m-8")
    assert not shop.area.is_empty()

    (staging / INTENT).unlink()
    (staging / INTENT).write_bytes(intent)
    shop.area.recover_commits()
    assert shop.files() == whole(2) | whole(3, "m-8")
    assert shop.area.is_empty()


def test_an_unreadable_manifest_keeps_the_commit_of_its_name(shop: Interrupted) -> None:
    staging, _ = shop.interrupt(1)
    loop(shop.logdir / f"m-7{MANIFEST}")
    shop.area.recover_commits()
    assert (staging / INTENT).exists()


def test_unreadable_files_keep_their_commit_and_no_other(shop: Interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = os.readv, []

    def fail_once(*args: Any) -> int:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(*args)

    shop.interrupt(1, "m-7")
    shop.interrupt(2, "m-8")
    with monkeypatch.context() as bad_disk:
        bad_disk.setattr(os, "readv", fail_once)
        shop.area.recover_commits()
    assert shop.files() == whole(2, "m-8")
    assert not shop.area.is_empty()

    shop.write_list(shop.logdir / "m-8")
    shop.area.recover_commits()
    assert shop.files() == whole(1, "m-7") | whole(2, "m-8")
    assert shop.area.is_empty()


# -- removal of leftovers ---------------------------------------------------------------------------------------
def test_a_commit_without_an_intent_is_removed(shop: Interrupted) -> None:
    shop.begin(1)
    shop.area.recover_commits()
    assert shop.files() == {}
    assert shop.area.is_empty()


@pytest.mark.parametrize("name", ["1", ".1.new"])
def test_links_to_a_replaced_checkpoint_are_removed_after_the_commit(shop: Interrupted, name: str) -> None:
    shop.commit(1)
    shop.set_aside(1)
    (shop.area.replaced / "1").rename(shop.area.replaced / name)
    shop.area.recover_commits()
    assert list(shop.area.replaced.iterdir()) == []
    assert shop.files() == whole(1)


def test_a_foreign_directory_is_left_alone(shop: Interrupted) -> None:
    shop.begin(1)
    (shop.area.staging / "mine").mkdir()
    (shop.area.staging / "5").write_text("mine")
    shop.area.recover_commits()
    assert sorted(path.name for path in shop.area.staging.iterdir()) == ["5", "mine"]
    assert shop.area.is_empty()


def test_a_commit_begins_in_an_empty_directory(shop: Interrupted) -> None:
    staging, _ = shop.interrupt(1)
    assert shop.area.begin_commit(1) == staging
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("where", ["staging", "replaced"])
def test_a_staging_area_is_empty_if_both_of_its_parts_are(shop: Interrupted, where: str) -> None:
    assert shop.area.is_empty()
    for part in ("staging", "replaced"):
        (shop.logdir / "procsv" / part).mkdir(parents=True)
    assert shop.area.is_empty()
    (shop.logdir / "procsv" / where / "1").mkdir()
    assert not shop.area.is_empty()
