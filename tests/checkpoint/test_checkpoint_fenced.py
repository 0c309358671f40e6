"""A machine that freezes in the middle of a commit, while another machine takes the logdir, harms
nothing when it wakes.

Wherever its commit stopped, the rest of it has no effect, and what the other machine acknowledged
stays.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from procsv.base.run.lease import Lease, LeaseFile, ProcessSpace
from procsv.base.run.paths import RunPaths
from procsv.base.system.process_state import process_state
from procsv.ipc.messaging.checkpoint_messages import Durable, SaveFailed, Snapshot
from procsv.services.checkpoint.core.facts import WriteMismatch
from procsv.services.checkpoint.store import commit, local_files
from tests.checkpoint.conftest import Run
from tests.support.commits import Commits, read_files
from tests.support.power_loss import read_tree, write_tree
from tests.support.standstill import Standstill

THEIRS = Lease(run="", place=ProcessSpace("node17", "b", "p"), pid=1, started=0.0, what="procsv launch train.py")
AHEAD = 10  # added to the other run's sequences, to be above all that it found

# steps saved before, the step saved then, a name for each step, max_to_keep, the step that the other machine saves
SCENARIOS: dict[str, tuple[list[int], int, bool, int, int]] = {
    "the first": ([], 1, True, 5, 2),
    "one that pushes out the oldest": ([1, 2], 4, True, 2, 5),
    "one that pushes out all others": ([1, 2], 4, True, 1, 5),
    "the step that the other saves, too": ([1, 2], 4, True, 2, 4),
    "a name without a step": ([1], 2, False, 5, 2),
    "more shards under the same name": ([1], 3, False, 5, 4),
    "fewer shards under the same name": ([1], 4, False, 5, 3),
}


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a filesystem where a lock says nothing to another machine."""

    @contextlib.contextmanager
    def hold_nothing(directory: Path) -> Iterator[bool]:
        yield False

    for module in (commit, local_files):
        monkeypatch.setattr(module, "hold_checkpoint_lock", hold_nothing)


@pytest.fixture
def other(run: Any, tmp_path: Path) -> Iterator[Run]:
    """Return a run of the same logdir on another machine."""
    paths = RunPaths(run.logdir, tmp_path / "other-run", tmp_path / "other-shm")
    for path in (paths.run_dir, paths.shm_dir):
        path.mkdir()
    made = Run(run.logdir, paths)
    yield made
    made.close()


def take_lease(logdir: Path, run: Run) -> None:
    paths = run.start(logdir=str(logdir)).paths
    paths.home.mkdir(exist_ok=True)
    LeaseFile(paths).take_lease(msgspec.structs.replace(THEIRS, run=run.id))


@pytest.mark.parametrize("name", SCENARIOS)
def test_row_68_a_commit_frozen_before_any_of_its_calls_changes_nothing_that_another_machine_saves_meanwhile(
    run: Any, plan: Any, publish: Any, directory: Path, other: Run, tmp_path: Path, name: str
) -> None:
    before, last, named, keep, theirs = SCENARIOS[name]
    (tmp_path / "meta").write_bytes(b"graph")
    saver = plan(save_path=str(directory / "model.ckpt"), max_to_keep=keep, meta_path=str(tmp_path / "meta"))
    ours, newer = (Commits(of, saver, publish, named) for of in (run, other))
    newer.ahead = AHEAD
    ours.save_all(before)
    tree, at, fenced, saved = read_tree(directory), 0, 0, 0
    ours.commit(last, ours.open_store())  # for its files: a successor may finish the commit

    def take_over() -> None:
        take_lease(directory, other)
        newer.commit(theirs, newer.open_store())

    while True:
        at += 1
        write_tree(directory, tree)
        store = ours.open_store()
        with Standstill(at, take_over) as still:
            try:
                ours.commit(last, store)
                saved += still.has_happened
            except (OSError, WriteMismatch):  # its files were removed before one of its calls, or while being read back
                assert still.has_happened
                fenced += 1
        if not still.has_happened:
            break
        assert newer.told is not None
        assert read_files(newer.told.path) == newer.files[newer.told.path][-1]
        for path, known in ours.files.items():
            newer.files.setdefault(path, [])[:0] = known
        newer.check(newer.told)
    assert at > 30, "the disk was not watched"
    assert fenced > saved > 0, "a commit is over with its tidying"


@pytest.mark.parametrize("where", ["before_rename", "before_directory_fsync", "before_manifest", "before_state"])
def test_row_68_a_service_frozen_in_its_commit_that_wakes_after_anothers_save_replaces_nothing(
    run: Run, other: Run, plan: Any, publish: Any, where: str
) -> None:
    saver = plan(save_path=str(run.logdir / "model.ckpt"), max_to_keep=1)
    newer = Commits(other, saver, publish)
    newer.ahead = AHEAD
    service = run.start_service(failpoints=f"checkpoint.{where}=1*off->1*stop")
    trainer, pool = run.trainer(plan=saver), run.pool()
    trainer.tell(saver)
    for step in (1, 2):
        state = {"a": np.full(50, step, np.float32), "global_step": np.array(step, np.int64)}
        info = publish(pool, saver, state, step, step)
        trainer.tell(Snapshot(info.sequence, info.step, "manual"))
        if step == 1:
            trainer.until_body(Durable, lambda news: news.step == 1)
    run.until(lambda: process_state(service.pid) == "T", "its stop")

    take_lease(run.logdir, other)
    newer.commit(2, newer.open_store())  # the same step with another state
    names = sorted(path.name for path in run.logdir.glob("model.ckpt*"))
    listed = (run.logdir / "checkpoint").read_bytes()
    service.signal(signal.SIGCONT)

    failed = trainer.until_body(SaveFailed)
    assert (failed.step, "another run" in failed.error) == (2, True)
    assert (run.logdir / "checkpoint").read_bytes() == listed
    assert sorted(path.name for path in run.logdir.glob("model.ckpt*")) == names
    newer.check(newer.told)
