"""Checkpoints outlive the deletion of their directory, whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from procsv.base.identity import TRAINER
from procsv.base.run.checkpoint_lock import is_checkpoint_locked
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import write_run
from procsv.ipc.messaging.start import Start
from procsv.training.runtime.program_logdir import CarriedCheckpoints
from tests.cli.test_run_file import a_run

OLD = ("model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index", "model.ckpt-1.manifest.json", "model.ckpt-1.meta")
ALL = sorted(("checkpoint", *OLD))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return the start of a run in `runs` that has adopted `logs` with a checkpoint in it."""
    root, logdir = tmp_path / "runs", tmp_path / "logs"
    paths = find_paths(root)
    paths.home.mkdir(parents=True)
    write_run(paths.run_json, a_run(began_step=0), durable=False)
    fill(logdir)
    return Start(TRAINER, "run", 1, str(logdir), str(paths.run_dir), str(paths.shm_dir), root=str(root))


def fill(logdir: Path) -> None:
    logdir.mkdir(exist_ok=True)
    for name in ALL:
        (logdir / name).write_text(name)
    (logdir / "events.out.tfevents.1").touch()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_checkpoints_come_back_and_are_kept_no_longer(start: Start) -> None:
    carried, logdir = CarriedCheckpoints(start), Path(start.logdir)
    assert carried.is_due()
    carried.link_checkpoints()
    shutil.rmtree(logdir)
    carried.put_back_links()
    assert names(logdir) == ALL
    assert not carried.is_kept


def test_a_kill_during_their_return_loses_none_though_the_program_deletes_again(start: Start) -> None:
    carried, logdir = CarriedCheckpoints(start), Path(start.logdir)
    carried.link_checkpoints()
    for count in range(len(ALL)):
        shutil.rmtree(logdir)
        logdir.mkdir()
        for name in OLD[:count]:  # those put back before the kill
            os.link(start.paths.home / "carried" / name, logdir / name)
        if carried.is_due():
            carried.link_checkpoints()
    shutil.rmtree(logdir)
    carried.put_back_links()
    assert names(logdir) == ALL


def test_what_a_failed_deletion_left_is_made_whole_again(start: Start) -> None:
    carried, logdir = CarriedCheckpoints(start), Path(start.logdir)
    carried.link_checkpoints()
    (logdir / OLD[1]).unlink()
    carried.put_back_links()
    assert set(ALL) <= set(names(logdir))
    assert not carried.is_kept


def test_without_hard_links_none_is_kept(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another filesystem")

    carried = CarriedCheckpoints(start)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="another filesystem"):
        carried.link_checkpoints()
    assert not carried.is_kept


def test_a_checkpoint_that_rotation_removes_before_its_link_is_not_kept_and_the_others_are_whole(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir = Path(start.logdir)
    newer = [name.replace("ckpt-1", "ckpt-12") for name in OLD]
    for at in range(1, 2 * len(OLD) + 1):
        fill(logdir)
        for name in newer:
            (logdir / name).write_text(name)
        rotation, carried = Rotation(logdir, at), CarriedCheckpoints(start)
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", rotation.link)
            carried.link_checkpoints()
        assert rotation.calls >= at
        shutil.rmtree(logdir)
        carried.put_back_links()
        assert set(names(logdir)) in ({"checkpoint", *newer}, {"checkpoint", *newer, *OLD})


class Rotation:
    """Removes the older checkpoint from a directory before link number `at` is made there."""

    def __init__(self, logdir: Path, at: int) -> None:
        self._logdir, self._at, self._link, self.calls = logdir, at, os.link, 0

    def link(self, source: Path, target: Path) -> None:
        self.calls += 1
        if self.calls == self._at:
            for name in sorted(OLD, key=lambda name: not name.endswith(".index")):
                (self._logdir / name).unlink()
        self._link(source, target)


def test_checkpoints_are_linked_and_put_back_while_nobody_else_changes_the_directory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, seen = os.link, list[bool]()

    def look(source: Path, target: Path) -> None:
        seen.append(is_checkpoint_locked(Path(start.logdir)))
        link(source, target)

    carried = CarriedCheckpoints(start)
    monkeypatch.setattr(os, "link", look)
    carried.link_checkpoints()
    shutil.rmtree(start.logdir)
    carried.put_back_links()
    assert seen == [True] * 2 * len(ALL)


def test_a_complete_training_and_a_run_without_its_own_directory_keep_nothing(
    start: Start,
) -> None:
    assert not CarriedCheckpoints(msgspec.structs.replace(start, root="")).is_due()
    run = a_run(began_step=-1)
    write_run(start.paths.run_json, run, durable=False)
    assert not CarriedCheckpoints(start).is_due()
