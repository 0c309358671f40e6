"""Saving copes with a logdir that is moved or copied after a kill in a commit, or deleted as the service starts."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.ipc.messaging.checkpoint_messages import Snapshot
from procsv.services.checkpoint.core.facts import SavableState
from tests.support.commits import local_store

pytestmark = pytest.mark.fault

WITH_INTENT = ["before_rename", "before_directory_fsync", "before_manifest", "before_state", "deleting_old"]


def values_of(step: int) -> dict[str, Any]:
    return {"x": np.full(100, step, np.float32), "global_step": np.array(step, np.int64)}


def kill_within_a_commit(run: Any, plan: Any, publish: Any, moment: str) -> None:
    """Acknowledge step 6, keep one checkpoint, and kill the service in the commit of step 7."""
    once_before = "" if moment == "deleting_old" else "1*off->"
    service = run.start_service(failpoints=f"checkpoint.{moment}={once_before}1*kill")
    one = plan(max_to_keep=1)
    trainer, pool = run.trainer(plan=one), run.pool()
    publish(pool, one, values_of(6), 1, 6)
    trainer.ask(Snapshot(1, 6, "manual"))
    publish(pool, one, values_of(7), 2, 7)
    trainer.tell(Snapshot(2, 7, "manual"))
    assert run.wait_ended(service).signal == signal.SIGKILL


def go_on(run: Any, plan: Any, publish: Any, logdir: Path) -> None:
    """Let a service in `logdir` find step 6 or 7 and save step 8."""
    here = plan(save_path=str(logdir / "model.ckpt"), max_to_keep=1)
    store = local_store(run.start(logdir=str(logdir)))
    store.open()
    store.list_checkpoints(here)
    found = store.find_checkpoint(here)
    assert found.checkpoint is not None, found.error
    assert found.checkpoint.step in (6, 7)
    assert Path(found.checkpoint.path).parent == logdir
    info = publish(run.pool(incarnation=2), here, values_of(8), 3, 8)
    durable = store.persist(SavableState.of_slot(info), "periodic", here)
    assert Path(durable.path).parent == logdir
    assert tf.train.load_checkpoint(str(logdir)).get_tensor("x")[0] == 8.0
    assert not list((logdir / "procsv").rglob("intent.json"))


@pytest.mark.parametrize("moment", WITH_INTENT)
def test_row_40_a_logdir_moved_within_a_commit_keeps_saving(run: Any, plan: Any, publish: Any, moment: str) -> None:
    kill_within_a_commit(run, plan, publish, moment)
    moved = run.logdir.parent / "elsewhere" / "deeper"
    moved.parent.mkdir()
    run.logdir.rename(moved)
    go_on(run, plan, publish, moved)
    assert not run.logdir.exists(), "nothing is written where it lay before"


@pytest.mark.parametrize("moment", WITH_INTENT)
def test_row_40_a_copy_made_within_a_commit_changes_nothing_in_the_original(
    run: Any, plan: Any, publish: Any, moment: str
) -> None:
    kill_within_a_commit(run, plan, publish, moment)
    copy = run.logdir.parent / "copy"
    shutil.copytree(run.logdir, copy, symlinks=True)
    before = tree(run.logdir)
    go_on(run, plan, publish, copy)
    assert tree(run.logdir) == before


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_service_that_starts_while_the_program_deletes_its_logdir_does_not_recreate_it(run: Any, store: Any) -> None:
    shutil.rmtree(run.logdir)

    store.lineage()
    store.open()

    assert not run.logdir.exists()


def test_a_bad_checkpoint_of_the_original_that_a_copied_list_names_is_left_alone(
    run: Any, plan: Any, publish: Any
) -> None:
    store = local_store(run.start())
    for step in (1, 2):
        store.persist(
            SavableState.of_slot(publish(run.pool(), plan(), values_of(step), step, step)), "periodic", plan()
        )
    copy = run.logdir.parent / "copy"
    copy.mkdir()
    for path in (run.logdir / "checkpoint", *run.logdir.glob("model.ckpt-1.*")):
        shutil.copy2(path, copy)
    (run.logdir / "model.ckpt-2.data-00000-of-00001").write_bytes(b"being written")
    before = tree(run.logdir)
    here = plan(save_path=str(copy / "model.ckpt"))
    found = local_store(run.start(logdir=str(copy))).find_checkpoint(here)
    assert found.checkpoint is not None
    assert found.checkpoint.path == str(copy / "model.ckpt-1")
    assert tree(run.logdir) == before
