"""A service writes and removes nothing in a logdir that another machine has taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.run.adoption import write_pointer
from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import RunFile, write_run
from procsv.base.system import disk
from tests.support.commits import Commits, local_store
from tests.support.power_loss import read_tree

THEIRS = Lease(run="f" * 16, place=ProcessSpace("node17", "b", "p"), pid=1, started=0.0, what="procsv launch train.py")


@pytest.fixture
def case(run: Any, plan: Any, publish: Any) -> Commits:
    commits = Commits(run, plan(), publish)
    commits.save_all([1, 2])
    return commits


def files_of(case: Commits) -> LeaseFile:
    return LeaseFile(case.run.start().paths)


def test_row_53_nothing_is_saved_once_another_machine_has_the_lease(case: Commits) -> None:
    store = case.open_store()
    files_of(case).create(THEIRS)
    tree = read_tree(case.logdir)
    with pytest.raises(OSError, match="node17"):
        case.commit(4, store)
    with pytest.raises(OSError, match="node17"):
        store.make_own(case.plan, f"{case.plan.save_path}-2")
    assert read_tree(case.logdir) == tree


def test_row_53_files_written_before_the_lease_was_taken_are_not_committed(
    case: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told = case.open_store(), case.told
    synced = disk.fsync_files

    def sync_and_lose(directory: Path) -> None:
        synced(directory)
        files_of(case).create(THEIRS)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "fsync_files", sync_and_lose)
        with pytest.raises(OSError, match="node17"):
            case.commit(4, store)
    files_of(case).remove(THEIRS.run)
    assert case.search().checkpoint is not None
    case.check(told)


def test_the_runs_own_lease_stops_nothing(case: Commits) -> None:
    files_of(case).create(msgspec.structs.replace(THEIRS, run=case.run.id))
    assert case.commit(4, case.open_store()).step == 4


def run_file(run: Any, logdir: Path) -> RunFile:
    """Write the run's file once it has adopted `logdir`."""
    paths = run.start().paths
    return RunFile(
        run=run.id, target="train.py", logdir=str(logdir), root=str(paths.logdir), run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir), pid=4_000_000, started=1.0, boot="b", state="running", incarnation=1, started_at=1e9,
    )  # fmt: skip


def test_row_57_nothing_is_saved_in_an_adopted_logdir_that_another_machine_has_taken(
    run: Any, plan: Any, publish: Any, tmp_path: Path
) -> None:
    logdir = tmp_path / "programs"
    (logdir / "procsv").mkdir(parents=True)
    case = Commits(run, plan(save_path=str(logdir / "model.ckpt")), publish)
    store = local_store(run.start())  # it starts before the program has named its directory
    run.start().paths.home.mkdir(parents=True)
    write_run(run.start().paths.run_json, run_file(run, logdir), durable=False)
    write_pointer(logdir, run.logdir)
    assert case.commit(1, store).path == str(logdir / "model.ckpt-1")

    LeaseFile(find_paths(logdir)).create(THEIRS)
    with pytest.raises(OSError, match="node17"):
        case.commit(2, store)
    assert not (logdir / "model.ckpt-2.index").exists()
