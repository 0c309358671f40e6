"""Checkpoints that the program saves by itself are adopted, kept correctly and never deleted too early."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.messaging.checkpoint_messages import Durable, Restore, Restored, Snapshot, Unwritable, UserSave
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone
from procsv.services.checkpoint.format.manifest import read_manifest, verify_files
from procsv.services.checkpoint.format.names import manifest_of
from procsv.services.checkpoint.store.scan import examine, scan_directory

tf1 = tf.compat.v1
SIZE = 1000


class Program:
    """The supervised program: it has a session and any number of Savers."""

    def __init__(self) -> None:
        self.graph = tf1.Graph()
        with self.graph.as_default():
            self.step = tf1.get_variable("global_step", initializer=np.int64(0))
            tf1.get_variable("x", initializer=np.zeros(SIZE, np.float32))
        self.session = tf1.Session(graph=self.graph)

    def saver(self, **options: Any) -> Any:
        with self.graph.as_default():
            saver = tf1.train.Saver(**options)
            self.session.run(tf1.global_variables_initializer())
        return saver

    def save(self, saver: Any, step: int, path: Path, **options: Any) -> str:
        with self.graph.as_default():
            self.step.load(step, self.session)
            return str(saver.save(self.session, str(path), global_step=step, **options))


@pytest.fixture
def program() -> Iterator[Program]:
    a_program = Program()
    yield a_program
    a_program.session.close()


@pytest.fixture
def snapshot(run: Any, publish: Any) -> Callable[..., Durable]:
    """Let the service save a snapshot of ours."""
    pool = run.pool()

    def do(trainer: Any, sequence: int, step: int) -> Durable:
        values = {"x": np.full(SIZE, step, np.float32), "global_step": np.array(step, np.int64)}
        publish(pool, trainer.plan, values, sequence, step)
        answer = trainer.ask(Snapshot(sequence, step, "manual"))
        assert isinstance(answer, Durable)
        return answer

    return do


def listed(run: Any) -> list[str]:
    state = tf.train.get_checkpoint_state(str(run.logdir))
    assert state.all_model_checkpoint_paths[-1] == state.model_checkpoint_path
    return [Path(path).name for path in state.all_model_checkpoint_paths]


def there(run: Any) -> set[str]:
    return {path.name.removesuffix(".index") for path in run.logdir.glob("*.index")}


def manual(path: Any) -> Callable[[Durable], bool]:
    return lambda d: d.reason == "manual" and d.sequence == 0 and d.path == str(path)


@pytest.mark.fault
def test_the_programs_own_save_gets_a_manifest_is_journaled_and_is_rotated_in_turn(
    run: Any, plan: Any, program: Program, snapshot: Any
) -> None:
    run.start_service()
    trainer, watchdog = run.trainer(plan=plan(max_to_keep=3)), run.watchdog()
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    saver = program.saver(max_to_keep=3)
    snapshot(trainer, 1, 10)
    saver.set_last_checkpoints_with_time([(str(run.logdir / "model.ckpt-10"), 1.0)])

    saved = program.save(saver, 12, run.logdir / "model.ckpt")
    trainer.tell(UserSave(saved))

    news = watchdog.until_body(Durable, manual(saved))
    assert (news.step, news.incarnation) == (12, 1)
    assert news.all_paths == (str(run.logdir / "model.ckpt-10"), saved)
    manifest = read_manifest(Path(saved + ".manifest.json"))
    assert manifest is not None
    assert (manifest.reason, manifest.step, manifest.incarnation, manifest.is_external) == ("manual", 12, 1, False)
    assert sorted(manifest.files) == [Path(saved).name + s for s in (".data-00000-of-00001", ".index", ".meta")]
    assert news.bytes == sum(Path(run.logdir / name).stat().st_size for name in manifest.files)
    verify_files(manifest, run.logdir)

    snapshot(trainer, 2, 11)  # an earlier state, saved later
    assert listed(run) == ["model.ckpt-10", "model.ckpt-11", "model.ckpt-12"]
    snapshot(trainer, 3, 20)
    assert listed(run) == ["model.ckpt-11", "model.ckpt-12", "model.ckpt-20"]
    snapshot(trainer, 4, 30)
    snapshot(trainer, 5, 40)
    assert there(run) == {"model.ckpt-20", "model.ckpt-30", "model.ckpt-40"}
    assert {p.name for p in run.logdir.glob("*.manifest.json")} == {f"{name}.manifest.json" for name in there(run)}


@pytest.mark.fault
def test_another_savers_checkpoints_are_found_unreported_stay_listed_beside_ours_and_are_never_deleted(
    run: Any, plan: Any, program: Program, snapshot: Any
) -> None:
    run.start_service()
    trainer, watchdog = run.trainer(plan=plan(max_to_keep=1)), run.watchdog()
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    snapshot(trainer, 1, 10)
    other = program.saver(max_to_keep=5)

    same_name = program.save(other, 11, run.logdir / "model.ckpt")
    watchdog.until_body(Durable, manual(same_name))
    assert listed(run) == ["model.ckpt-10", "model.ckpt-11"], "a Saver that knows only its own has dropped ours"
    best = program.save(other, 12, run.logdir / "best")
    watchdog.until_body(Durable, manual(best))
    unlisted = program.save(other, 13, run.logdir / "aside", write_state=False)
    watchdog.until_body(Durable, manual(unlisted))
    assert listed(run) == ["model.ckpt-10", "model.ckpt-11", "best-12"]

    for sequence, step in ((2, 20), (3, 30)):
        durable = snapshot(trainer, sequence, step)
        assert durable.all_paths == (str(run.logdir / f"model.ckpt-{step}"),)
    assert listed(run) == ["model.ckpt-11", "best-12", "model.ckpt-30"]
    assert there(run) == {"model.ckpt-11", "best-12", "aside-13", "model.ckpt-30"}


@pytest.mark.fault
def test_manifests_are_deleted_with_the_checkpoints_that_another_saver_or_the_program_deletes(
    run: Any, plan: Any, program: Program, snapshot: Any
) -> None:
    run.start_service()
    trainer, watchdog = run.trainer(plan=plan()), run.watchdog()
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    other = program.saver(max_to_keep=1)
    for step in (11, 12):
        watchdog.until_body(Durable, manual(program.save(other, step, run.logdir / "best")))
    assert _manifests(run) == {"best-12"}
    for file in run.logdir.glob("best-12.*[!n]"):  # all but the manifest
        file.unlink()
    snapshot(trainer, 1, 20)
    assert _manifests(run) == {"model.ckpt-20"}


def _manifests(run: Any) -> set[str]:
    return {path.name.removesuffix(".manifest.json") for path in run.logdir.glob("*.manifest.json")}


@pytest.mark.fault
def test_a_new_trainer_restores_the_last_ones_own_save_if_that_is_later_than_its_snapshot(
    run: Any, plan: Any, program: Program, publish: Any
) -> None:
    service = run.start_service()
    trainer = run.trainer(plan=plan())
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    values = {"x": np.ones(SIZE, np.float32), "global_step": np.array(5, np.int64)}
    publish(run.pool(), plan(), values, 1, 5)
    trainer.ask_ack(Snapshot(1, 5, ""))

    saved = program.save(program.saver(), 9, run.logdir / "model.ckpt")
    answer = run.trainer(2, plan=plan()).ask(Restore(False))

    assert (answer.source, answer.path, answer.step) == ("checkpoint", saved, 9)
    late = program.save(program.saver(), 11, run.logdir / "model.ckpt")
    watchdog = run.watchdog()
    assert watchdog.ask(Finish()) == FlushDone(11, "")  # the last moments count, too
    assert Path(late + ".manifest.json").exists()
    assert run.wait_ended(service).code == 0


@pytest.mark.long
@pytest.mark.fault
def test_a_missing_directory_is_reported_and_saves_and_hints_work_again_when_it_is_back(
    run: Any, plan: Any, program: Program, snapshot: Any, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.start_service()
    trainer, watchdog = run.trainer(plan=plan(save_path=str(elsewhere / "model.ckpt"))), run.watchdog()
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    snapshot(trainer, 1, 10)

    shutil.rmtree(elsewhere)
    gone = watchdog.until_body(Unwritable)
    elsewhere.mkdir()
    back = watchdog.until_body(Unwritable, lambda u: not u.error)

    assert gone.error.startswith(f"{elsewhere} ")
    assert back.error == ""
    saved = program.save(program.saver(), 12, elsewhere / "model.ckpt")
    watchdog.until_body(Durable, manual(saved))
    assert snapshot(trainer, 2, 20).step == 20


@pytest.mark.parametrize("moment", ["statvfs", "access", "scandir"])
def test_row_48_a_directory_that_disappears_during_a_scan_is_reported_as_missing(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    look = getattr(os, moment)

    def look_too_late(path: Any, *more: Any) -> Any:
        monkeypatch.setattr(os, moment, look)  # a removal looks, too
        shutil.rmtree(elsewhere)
        return look(path, *more)

    monkeypatch.setattr(os, moment, look_too_late)
    scan = scan_directory(plan(save_path=str(elsewhere / "model.ckpt")))
    assert (scan.external, scan.newest_step) == ((), None)
    assert scan.trouble.startswith(f"{elsewhere} ")


@pytest.mark.long
def test_row_48_a_watchdog_that_starts_after_the_directory_was_lost_still_learns_of_it(
    run: Any, plan: Any, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.start_service()
    trainer = run.trainer(plan=plan(save_path=str(elsewhere / "model.ckpt")))
    trainer.ask(Restore(False))
    trainer.ask_ack(Restored())
    elsewhere.rmdir()
    lost = trainer.until_body(Unwritable)
    assert run.watchdog().until_body(Unwritable) == lost
    elsewhere.mkdir()
    trainer.until_body(Unwritable, lambda u: not u.error)
    late = run.trainer(2)
    late.ask_ack(Restored())
    assert not [heard.body for heard in late.received if isinstance(heard.body, Unwritable)]


def test_while_a_save_holds_the_lock_a_checkpoints_owner_may_still_change_and_a_late_report_counts(
    run: Any, store: Any, plan: Any, program: Program
) -> None:
    one, saver = plan(max_to_keep=1), program.saver()
    store.list_checkpoints(one)

    def examined() -> Any:
        (sighting,) = scan_directory(one).external
        return examine(sighting, SystemClock())

    first = program.save(saver, 5, run.logdir / "model.ckpt")
    with hold_checkpoint_lock(run.logdir):
        assert store.adopt_checkpoint(one, examined(), False, 1).durable is None
    assert store.adopt_checkpoint(one, examined(), False, 1).durable.all_paths == (), "nobody has said whose it is"
    second = program.save(saver, 6, run.logdir / "model.ckpt")
    assert store.adopt_checkpoint(one, examined(), True, 1).durable.all_paths == (second,)
    assert listed(run) == ["model.ckpt-5", "model.ckpt-6"]

    store.make_own(one, first)

    assert listed(run) == ["model.ckpt-6"]
    assert there(run) == {"model.ckpt-6"}
    assert scan_directory(one).external == ()


def test_a_checkpoint_seen_just_before_its_manifest_was_written_keeps_its_owner(
    run: Any, store: Any, plan: Any, program: Program
) -> None:
    """A scan between our checkpoint's files and its manifest would make it external, and it would
    never be deleted.
    """
    store.list_checkpoints(plan())
    saved = program.save(program.saver(), 5, run.logdir / "model.ckpt")
    (sighting,) = scan_directory(plan()).external
    seen = examine(sighting, SystemClock())
    assert store.adopt_checkpoint(plan(), seen, True, 1).durable is not None
    before = manifest_of(saved).read_bytes()
    assert store.adopt_checkpoint(plan(), seen, False, 2).durable is None
    assert manifest_of(saved).read_bytes() == before


def test_a_damaged_or_changing_checkpoint_is_not_adopted(run: Any, store: Any, plan: Any, program: Program) -> None:
    store.list_checkpoints(plan())
    saved = program.save(program.saver(), 5, run.logdir / "model.ckpt")
    (sighting,) = scan_directory(plan()).external
    good = examine(sighting, SystemClock())
    data = Path(saved + ".data-00000-of-00001")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    assert store.adopt_checkpoint(plan(), good, True, 1).durable is None, "it has changed since it was read"
    (cut,) = scan_directory(plan()).external
    assert "the index lists" in examine(cut, SystemClock()).error
    data.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    (flipped,) = scan_directory(plan()).external
    assert "checksum" in examine(flipped, SystemClock()).error
    seen_before = examine(cut, SystemClock())
    assert (seen_before.files, seen_before.error) == ({}, ""), "no verdict on what is not there any more"
    assert not Path(saved + ".manifest.json").exists()
