"""The real service process turns a snapshot in a slot into a checkpoint, whatever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from procsv.base.identity import CHECKPOINT, TaskId
from procsv.base.run.lease import Lease, LeaseFile, find_place
from procsv.base.system.failpoints import DECLARED
from procsv.base.system.processes import spawn
from procsv.ipc.messaging.checkpoint_messages import (
    Durable,
    Rejected,
    Restore,
    Restored,
    RestoreFrom,
    SaveFailed,
    Snapshot,
    Staged,
)
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.watchdog_messages import Finish, FlushDone, TrainerExited
from procsv.ipc.shm.heartbeat import Phase
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.services.checkpoint import process

pytestmark = pytest.mark.fault

VALUES = {"x": np.arange(1000, dtype=np.float32), "global_step": np.array(7, np.int64)}
START = "checkpoint.start"  # before it serves: tests/run/test_refusals.py
COMMIT_MOMENTS = sorted(name for name in DECLARED if name.startswith("checkpoint.") and name != START)


def newest(run: Any) -> str:
    return str(tf.train.latest_checkpoint(str(run.logdir)))


def test_a_snapshot_becomes_a_checkpoint_that_a_new_trainer_is_pointed_to(run: Any, plan: Any, publish: Any) -> None:
    service = run.start_service()
    trainer = run.trainer(plan=plan())
    assert trainer.ask(Restore(False)) == RestoreFrom("fresh", "", -1, 0, (), "")
    trainer.ask_ack(Restored())
    info = publish(run.pool(), plan(), VALUES, 1, 7)

    durable = trainer.ask(Snapshot(1, 7, "manual"))

    assert (durable.path, durable.step) == (newest(run), 7)
    memory = trainer.ask(Restore(False))
    assert (memory.source, memory.path, memory.sequence) == ("memory", str(info.path), 1)
    disk = trainer.ask(Restore(True))
    assert (disk.source, disk.path, disk.step) == ("checkpoint", durable.path, 7)
    watchdog = run.watchdog()
    assert watchdog.until_body(Durable).path == durable.path
    assert watchdog.ask(TrainerExited(1, True)) == FlushDone(7, "")
    assert watchdog.ask(Finish()) == FlushDone(7, "")
    assert run.wait_ended(service).code == 0
    assert not run.paths.service_socket(CHECKPOINT).exists()


def values_of(step: int) -> dict[str, Any]:
    return {"x": np.arange(1000, dtype=np.float32) * step, "global_step": np.array(step, np.int64)}


def assert_holds(path: str, step: int) -> None:
    """Check with TensorFlow that the files at `path` hold `step`."""
    reader = tf.train.load_checkpoint(path)
    for name, value in values_of(step).items():
        assert reader.get_tensor(name).tobytes() == value.tobytes(), f"{name} in {path} is not that of step {step}"


@pytest.mark.parametrize("moment", COMMIT_MOMENTS)
def test_after_a_kill_at_any_moment_the_next_service_saves_again(
    run: Any, plan: Any, publish: Any, moment: str
) -> None:
    """The previous checkpoint is acknowledged. The service dies at that moment of the next save or restore."""
    serves = moment == "checkpoint.serving_restore"
    once_before = "" if moment == "checkpoint.deleting_old" else "1*off->"
    first = run.start_service(failpoints="" if serves else f"{moment}={once_before}1*kill")
    one = plan(max_to_keep=1)
    trainer = run.trainer(plan=one)
    pool = run.pool()
    publish(pool, one, values_of(6), 1, 6)
    assert_holds(trainer.ask(Snapshot(1, 6, "manual")).path, 6)
    publish(pool, one, values_of(7), 2, 7)
    if serves:
        first.signal(signal.SIGKILL)
        run.wait_ended(first)
        first = run.start_service(failpoints=f"{moment}=1*kill")
        trainer.tell(Restore(True))
        assert run.wait_ended(first).signal == signal.SIGKILL
        assert_holds(newest(run), 6)  # before anything is repaired
        run.start_service()
        served = trainer.until_body(RestoreFrom)
        assert served.source == "checkpoint"
        assert_holds(served.path, served.step)
        assert served.step in (6, 7)  # 7: the new service has saved what it found in memory
        seq = trainer.tell(Snapshot(2, 7, "final"))
    else:
        seq = trainer.tell(Snapshot(2, 7, "final"))
        assert run.wait_ended(first).signal == signal.SIGKILL
        assert_holds(newest(run), 6 if newest(run).endswith("-6") else 7)
        run.start_service()

    durable = trainer.until(lambda h: h.re == seq and isinstance(h.body, Durable)).body

    assert (durable.path, durable.all_paths[-1]) == (newest(run), newest(run))
    answer = run.trainer(2, plan=one).ask(Restore(True))
    assert (answer.source, answer.path) == ("checkpoint", durable.path)
    assert_holds(answer.path, 7)
    assert run.watchdog().ask(Finish()).error == ""
    assert run.wait_ended(run.services[-1]).code == 0
    assert [h.re for h in trainer.received if h.re == seq and isinstance(h.body, Durable)] == [seq], (
        "acknowledged twice"
    )
    left = {p.name for p in run.logdir.iterdir() if not p.name.startswith("model.ckpt-7.")}
    served_one = {p.name for p in run.logdir.glob("model.ckpt-6.*") if serves}
    assert left - served_one <= {"checkpoint", "procsv"}
    assert {p.name for p in run.paths.home.iterdir() if p.name != "staging"} <= {
        "checkpoints.json",
        "logs",
        "replaced",
    }
    assert not any(list((run.paths.home / n).glob("*")) for n in ("staging", "replaced"))


def test_a_dead_trainers_state_is_saved_and_the_next_trainer_restores_it_from_memory(
    run: Any, plan: Any, publish: Any
) -> None:
    run.start_service()
    trainer, watchdog = run.trainer(plan=plan()), run.watchdog()
    trainer.ask_ack(Restored())
    info = publish(run.pool(), plan(), VALUES, 1, 7)
    trainer.ask_ack(Snapshot(1, 7, ""))

    assert watchdog.ask(TrainerExited(1, False)) == FlushDone(7, "")

    assert watchdog.until_body(Durable).reason == "crash"
    second = run.trainer(2, plan=plan())
    answer = second.ask(Restore(False))
    assert (answer.source, answer.path, answer.step) == ("memory", str(info.path), 7)
    assert info.path.exists()
    second.ask_ack(Restored())
    run.until(lambda: not list(run.paths.shm_dir.glob("slot.*")), "the end of the old slots")


def test_a_tasks_claim_about_its_state_is_refused_unless_it_is_the_saved_task(
    run: Any, plan: Any, publish: Any
) -> None:
    run.start_service()
    trainer = run.trainer(plan=plan())
    worker = run.trainer(task=TaskId("worker", 1), plan=plan(save_path=str(run.logdir / "other.ckpt")))
    publish(run.pool(), plan(), VALUES, 1, 7)

    worker.ask_ack(Snapshot(1, 7, "manual"))
    worker.ask_ack(Restored())

    assert trainer.ask(Snapshot(1, 7, "manual")).path == newest(run)
    beats = HeartbeatReader(run.paths.heartbeat(CHECKPOINT, 1))
    run.until(
        lambda: (beat := beats.read_heartbeat()) is not None and beat.refused == 3, "the count of what was refused"
    )
    beats.close()
    assert not list(run.logdir.glob("other.ckpt*"))


def test_a_full_disk_is_reported_and_the_save_succeeds_when_there_is_room(run: Any, plan: Any, publish: Any) -> None:
    run.start_service(failpoints="checkpoint.before_rename=1*enospc;checkpoint.before_manifest=1*eio")
    trainer = run.trainer(plan=plan())
    publish(run.pool(), plan(), VALUES, 1, 7)

    assert "No space left" in trainer.ask(Snapshot(1, 7, "manual")).error
    assert trainer.until_body(SaveFailed, lambda f: "Input/output" in f.error).sequence == 1
    assert trainer.until_body(Durable).reason == "manual"


def test_a_torn_write_is_noticed_by_reading_back_and_repeated(run: Any, plan: Any, publish: Any) -> None:
    run.start_service(failpoints="checkpoint.mid_write=1*torn")
    trainer = run.trainer(plan=plan())
    publish(run.pool(), plan(), VALUES, 1, 7)

    assert "the index lists" in trainer.ask(Snapshot(1, 7, "manual")).error
    assert trainer.until_body(Durable).path == newest(run)


def test_a_damaged_slot_is_rejected_and_the_older_one_is_restored(run: Any, plan: Any, publish: Any) -> None:
    run.start_service()
    watchdog = run.watchdog()
    pool = run.pool()
    older, newer = publish(pool, plan(), VALUES, 1, 6), publish(pool, plan(), VALUES, 2, 7)
    with newer.path.open("r+b") as file:
        file.seek(4096 + 11)
        file.write(b"!")

    answer = run.trainer(2, plan=plan()).ask(Restore(False))

    assert (answer.source, answer.path, answer.step) == ("memory", str(older.path), 6)
    assert watchdog.until_body(Rejected).path == str(newer.path)


def test_staged_files_are_moved_in_and_their_directory_is_removed(run: Any, plan: Any) -> None:
    run.start_service()
    staged = run.paths.shm_dir / "staged.3"
    staged.mkdir()
    prefix = str(staged / "model.ckpt-9")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["x"], shape_and_slices=[""], tensors=[np.ones(3, np.float32)])
    trainer = run.trainer(plan=plan())

    durable = trainer.ask(Staged(prefix, 3, 9, "final"))

    assert (durable.path, durable.step, durable.sequence) == (newest(run), 9, 3)
    run.until(lambda: not staged.exists(), "the end of the staging directory")


def test_the_next_run_restores_a_previous_runs_snapshot(run: Any, plan: Any, publish: Any) -> None:
    first = run.start_service()
    run.trainer(plan=plan()).ask(Restore(False))
    info = publish(run.pool(), plan(), VALUES, 5, 70)
    first.signal(signal.SIGKILL)
    run.wait_ended(first)
    run.id = "another"
    run.start_service(incarnation=1)

    answer = run.trainer(2, plan=plan()).ask(Restore(False))

    assert (answer.source, answer.path, answer.step, answer.sequence) == ("memory", str(info.path), 70, 5)


def test_a_deleted_logdirs_snapshot_is_not_restored(run: Any, plan: Any, publish: Any) -> None:
    info = publish(run.pool(), plan(), VALUES, 5, 70)
    run.id = "another"
    run.start_service()

    assert run.trainer(plan=plan()).ask(Restore(False)).source == "fresh"
    run.until(lambda: not info.path.exists(), "the end of the unknown run's slot")


def test_without_a_good_checkpoint_the_restore_is_an_error(run: Any, plan: Any) -> None:
    (run.logdir / "model.ckpt-3.index").write_bytes(b"nonsense")
    run.start_service()
    watchdog = run.watchdog()

    answer = run.trainer(plan=plan()).ask(Restore(False))

    assert str(run.logdir) in answer.error
    assert watchdog.until_body(Rejected).path == str(run.logdir / "model.ckpt-3")


def test_the_last_process_saves_and_leaves_nothing_behind(run: Any, plan: Any, publish: Any) -> None:
    service = run.start_service()
    trainer = run.trainer(plan=plan())
    child = spawn([sys.executable, "-c", "input()"], env=dict(os.environ), log=None)
    trainer.pid = child.pid
    trainer.ask(Restore(False))
    publish(run.pool(), plan(), VALUES, 1, 7)
    (run.paths.shm_dir / "meta.1").write_bytes(b"")
    (run.paths.run_dir / "trainer.1.heartbeat").write_bytes(b"")

    run.wait_ended(child)
    run.cut_lifeline()

    assert run.wait_ended(service).code == 0
    assert newest(run).endswith("-7")
    assert not run.paths.run_dir.exists()
    assert not run.paths.shm_dir.exists()


def test_the_last_process_kills_a_trainer_that_outlives_its_grace_period(run: Any, plan: Any) -> None:
    service = run.start_service(settings=LaunchSettings(grace_s=0.3))
    child = spawn([sys.executable, "-c", "import threading; threading.Event().wait()"], env=dict(os.environ), log=None)
    trainer = run.trainer(plan=plan())
    trainer.pid = child.pid
    trainer.ask(Restore(False))

    run.cut_lifeline()

    assert run.wait_ended(child).signal == signal.SIGKILL
    assert run.wait_ended(service).code == 0
    assert not run.paths.run_dir.exists()


@pytest.mark.long
def test_row_53_the_last_process_keeps_the_lease_while_the_program_lives_and_then_removes_it(
    run: Any, plan: Any
) -> None:
    lease = Lease(run=run.id, place=find_place(), pid=1, started=0.0, what="python train.py", renewed=1.0)
    file = LeaseFile(run.paths)
    run.paths.home.mkdir(exist_ok=True)
    file.create(lease)
    service = run.start_service(observes=os.getpid())
    child = spawn([sys.executable, "-c", "import threading; threading.Event().wait()"], env=dict(os.environ), log=None)
    trainer = run.trainer(plan=plan())
    trainer.pid = child.pid
    trainer.ask(Restore(False))

    run.cut_lifeline()

    while file.holder() == lease:
        trainer.turn(0.05)
    child.signal(signal.SIGKILL)
    run.wait_ended(child)
    assert run.wait_ended(service).code == 0
    assert file.read_lease() is None


def test_the_heartbeat_shows_the_current_job_and_the_socket_answers_during_a_save(
    run: Any, plan: Any, publish: Any, tmp_path: Path
) -> None:
    go_on = tmp_path / "go_on"
    run.start_service(failpoints=f"checkpoint.temporary_created=1*await({go_on})")
    trainer = run.trainer(plan=plan())
    publish(run.pool(), plan(), VALUES, 1, 7)
    seq = trainer.tell(Snapshot(1, 7, "manual"))
    reader = HeartbeatReader(run.paths.heartbeat(CHECKPOINT, 1))
    while (beat := reader.read_heartbeat()) is None or beat.phase is not Phase.SAVE:
        trainer.turn(0.02)

    memory = run.trainer(2, plan=plan()).ask(Restore(False))

    assert memory.source == "memory"
    trainer.turn()
    assert not [h for h in trainer.received if h.re == seq and isinstance(h.body, Durable)]
    go_on.touch()
    trainer.until(lambda h: h.re == seq and isinstance(h.body, Durable))
    while (beat := reader.read_heartbeat()) is None or beat.work != 1:
        trainer.turn(0.02)
    reader.close()


def test_disk_work_runs_at_the_lowest_priority(run: Any, plan: Any, publish: Any) -> None:
    service = run.start_service()
    trainer = run.trainer(plan=plan())
    publish(run.pool(), plan(), VALUES, 1, 7)
    trainer.ask(Snapshot(1, 7, "manual"))

    threads = [psutil.Process(thread.id) for thread in psutil.Process(service.pid).threads()]

    last = (psutil.IOPRIO_CLASS_BE, 7)
    polite = [thread.pid for thread in threads if thread.nice() >= 5 and tuple(thread.ionice()) == last]
    assert polite
    assert service.pid not in polite  # the thread that answers the trainer is not one of them
    assert psutil.Process(service.pid).nice() == psutil.Process().nice()


def test_a_run_that_ends_at_once_ends_cleanly(run: Any) -> None:
    service = run.start_service()
    assert run.watchdog().ask(Finish()) == FlushDone(-1, "")
    assert run.wait_ended(service).code == 0
    assert "Traceback" not in run.log()


def test_every_moment_of_the_fault_matrix_has_its_failpoint() -> None:
    assert process is not None
    moments = "receive temporary_created mid_write before_fsync before_rename before_directory_fsync before_manifest"
    moments += " before_state before_ack deleting_old serving_restore"
    assert {f"checkpoint.{moment}" for moment in moments.split()} == set(COMMIT_MOMENTS)
