"""An intent is read back as written, and in a moved logdir it applies to the new place only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.run.manifest import FileSum
from procsv.services.checkpoint.store.intent import INTENT, Intent, read_intent, write_intent
from tests.support.interrupted import Interrupted


@pytest.fixture
def shop(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path / "logdir")


def interrupt(shop: Interrupted, elsewhere: Path, save_path: str = "") -> tuple[Path, Intent]:
    """Interrupt a commit that lists and deletes checkpoints in its own and in another directory."""
    here = [str(shop.logdir / name) for name in ("m-1", "m-2", "m-7")]
    there = [str(elsewhere / name) for name in ("m-3", "m-4")]
    save_path = save_path or str(shop.logdir / "m")
    return shop.interrupt(1, listed=(there[0], *here[1:]), delete=(here[0], there[1]), save_path=save_path)


def moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old)


def test_in_its_own_place_an_intent_reads_back_as_written(shop: Interrupted, tmp_path: Path) -> None:
    staging, intent = interrupt(shop, tmp_path / "elsewhere")
    own = tuple(path for path in intent.delete if path.startswith(f"{shop.logdir}/"))
    assert len(own) < len(intent.delete)
    assert read_intent(staging) == msgspec.structs.replace(intent, delete=own), "nothing is deleted elsewhere"


def test_in_its_own_place_the_checkpoint_may_be_outside_of_the_staging_area(shop: Interrupted, tmp_path: Path) -> None:
    staging, intent = interrupt(shop, tmp_path / "elsewhere")
    ckpts, theirs = tmp_path / "ckpts", str(tmp_path / "ckpts" / "m-3")
    outside = msgspec.structs.replace(
        intent, path=str(ckpts / "m-7"), state_file=str(ckpts / "checkpoint"), delete=(theirs,)
    )
    write_intent(staging, outside)
    assert read_intent(staging) == outside


@pytest.mark.parametrize(
    "changes",
    [
        {"state_file": "/etc/passwd"},
        {"path": "../m-7"},
        {"files": {".profile": FileSum(1, "00")}},
        {"files": {"../m-7.index": FileSum(1, "00")}},
        {"files": {"m-7.x/../../y": FileSum(1, "00")}},
        {"files": {"m-70.index": FileSum(1, "00")}},
    ],
    ids=str,
)
def test_an_intent_that_names_files_of_another_checkpoint_is_ignored(
    shop: Interrupted, changes: dict[str, Any]
) -> None:
    staging, intent = shop.interrupt(1)
    if "files" in changes:
        changes = {"manifest": msgspec.structs.replace(intent.manifest, **changes)}
    write_intent(staging, msgspec.structs.replace(intent, **changes))
    assert read_intent(staging) is None


def test_an_interrupted_commit_for_another_directory_waits_for_the_plan_that_names_it(
    shop: Interrupted, tmp_path: Path
) -> None:
    ckpts = tmp_path / "ckpts"
    ckpts.mkdir()
    staging, _ = shop.interrupt(
        1, path=str(ckpts / "m-7"), state_file=str(ckpts / "checkpoint"), listed=(str(ckpts / "m-7"),)
    )
    for elsewhere in (None, tmp_path / "others"):
        shop.area.recover_commits(elsewhere)
        assert staging.exists()
        assert not list(ckpts.iterdir())
    shop.area.recover_commits(ckpts)
    assert not staging.exists()
    assert (ckpts / "m-7.index").exists()


def test_an_interrupted_commit_in_another_spelling_of_the_directory_is_completed(
    shop: Interrupted, tmp_path: Path
) -> None:
    ckpts, link = tmp_path / "ckpts", tmp_path / "link"
    ckpts.mkdir()
    link.symlink_to(ckpts)
    staging, _ = shop.interrupt(
        1, path=str(link / "m-7"), state_file=str(link / "checkpoint"), listed=(str(link / "m-7"),)
    )
    shop.area.recover_commits(ckpts)
    assert not staging.exists()
    assert (ckpts / "m-7.index").exists()


@pytest.mark.parametrize("name", ["staging", "staging/7"])
def test_what_lies_behind_a_link_is_not_removed(shop: Interrupted, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    (precious / "8").mkdir(parents=True)
    (precious / "8" / "thesis").touch()
    link = shop.area.home / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious)
    shop.area.recover_commits()
    assert (precious / "8" / "thesis").exists()


@pytest.mark.parametrize(("save_path", "then"), [("", "{new}/m"), ("m", "m"), ("logdir/m", "logdir/m")])
def test_in_a_moved_logdir_an_intent_applies_to_that_logdir_only(
    shop: Interrupted, tmp_path: Path, save_path: str, then: str
) -> None:
    staging, intent = interrupt(shop, tmp_path / "elsewhere", save_path)
    new = tmp_path / "new"
    shop.logdir.rename(new)
    assert read_intent(moved(staging, shop.logdir, new)) == msgspec.structs.replace(
        intent,
        path=f"{new}/m-7",
        state_file=f"{new}/checkpoint",
        save_path=then.format(new=new),
        listed=(f"{new}/m-2", f"{new}/m-7"),
        delete=(f"{new}/m-1",),
    )


def test_in_a_moved_logdir_an_intent_for_a_directory_outside_is_ignored(shop: Interrupted, tmp_path: Path) -> None:
    staging, intent = interrupt(shop, tmp_path / "elsewhere")
    write_intent(staging, msgspec.structs.replace(intent, path=str(tmp_path / "ckpts" / "m-7")))
    new = tmp_path / "new"
    shop.logdir.rename(new)
    assert read_intent(moved(staging, shop.logdir, new)) is None


@pytest.mark.parametrize("damage", [None, b"", b"{}", b"\xff"])
def test_a_commit_with_a_partial_intent_has_none(shop: Interrupted, damage: bytes | None) -> None:
    staging, _ = shop.interrupt(1)
    if damage is None:
        (staging / INTENT).unlink()
    else:
        (staging / INTENT).write_bytes(damage)
    assert read_intent(staging) is None
