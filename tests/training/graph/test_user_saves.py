"""The user's own saver.save works beside the checkpoint service: nothing is forgotten and nothing waits forever."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf

import procsv
from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.training.snapshots.training_run import training_of
from tests.support.journal import read_journal
from tests.support.launched import NEWS_S_MAX

tf1 = tf.compat.v1
pytestmark = pytest.mark.fault


def _listed(logdir: Path) -> list[str]:
    state = tf.train.get_checkpoint_state(str(logdir))
    assert state.all_model_checkpoint_paths[-1] == state.model_checkpoint_path
    return [Path(path).name for path in state.all_model_checkpoint_paths]


def _there(logdir: Path) -> set[str]:
    return {path.name.removesuffix(".index") for path in logdir.glob("model.ckpt-*.index")}


def _wait_for(path: Path) -> None:
    _wait_until(path.exists, path.name)


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not is_so():
        assert time.monotonic() < deadline_s, f"no {what}"
        pause.wait(0.02)


@pytest.mark.parametrize("ways_of_saving", ["slots", "staging"])
@pytest.mark.parametrize("threads", [pytest.param(0, marks=pytest.mark.long), 3])
def test_the_users_and_the_services_saves_are_all_listed_and_the_old_ones_are_deleted(
    tmp_path: Path, threads: int, ways_of_saving: str
) -> None:
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train = tf1.assign_add(step, 1)
        saver = tf1.train.Saver(max_to_keep=3)
        if ways_of_saving == "staging":

            class Mine(tf1.train.Saver):  # type: ignore[name-defined]
                def save(self, *args: Any, **kwargs: Any) -> Any:
                    return super().save(*args, **kwargs)

            saver = Mine(max_to_keep=3)
        supervisor = procsv.Supervisor(logdir=str(tmp_path), saver=saver, save_model_secs=0.1, save_summaries_secs=0)
        with supervisor.managed_session() as session:

            def save() -> None:
                for _ in range(15):
                    supervisor.saver.save(session, supervisor.save_path, global_step=step)

            others = [threading.Thread(target=save) for _ in range(threads)]
            for other in others:
                other.start()
            for _ in range(15):
                session.run(train)
                supervisor.saver.save(session, supervisor.save_path, global_step=step)
            deadline_s = time.monotonic() + NEWS_S_MAX
            while any(other.is_alive() for other in others):
                session.run(train)
                assert time.monotonic() < deadline_s
        assert set(_listed(tmp_path)) == _there(tmp_path)
        assert len(_there(tmp_path)) == 3
        assert vars(supervisor.saver).get("save") is None
        with supervisor.managed_session() as session:
            assert session.run(step) == max(int(name.rpartition("-")[2]) for name in _there(tmp_path))


def test_the_lock_goes_to_one_saver_at_a_time_and_every_saver_gets_it(tmp_path: Path) -> None:
    with hold_checkpoint_lock(tmp_path) as first, hold_checkpoint_lock(tmp_path, timeout_s=0.05) as second:
        assert first
        assert not second
    with hold_checkpoint_lock(tmp_path) as again, hold_checkpoint_lock(tmp_path / "nowhere") as nowhere:
        assert again
        assert not nowhere
    assert not list(tmp_path.iterdir())


def test_a_later_state_that_the_user_saved_stays_the_latest_when_an_earlier_snapshot_is_saved_after_it(
    tmp_path: Path,
) -> None:
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train = tf1.assign_add(step, 1)
        supervisor = procsv.Supervisor(
            logdir=str(tmp_path), final_checkpoint=False, save_summaries_secs=0, snapshot_secs=600
        )
        with supervisor.managed_session() as session:
            training = training_of(supervisor)
            snapshots = training.snapshots
            assert snapshots is not None
            assert training.wait_asked(NEWS_S_MAX)  # the first state is saved
            session.run(train)
            snapshots.take_snapshot("")  # a snapshot of step 1, saved when the run ends
            session.run(train)
            supervisor.saver.save(session, supervisor.save_path, global_step=step)
    assert _listed(tmp_path) == ["model.ckpt-0", "model.ckpt-1", "model.ckpt-2"]


def test_saves_before_the_first_durable_state_stay_and_another_savers_are_neither_dropped_nor_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCSV_FAILPOINTS", "checkpoint.temporary_created=1*stop")  # in the service: a slow disk
    monkeypatch.setattr(
        "procsv.training.snapshots.training_run.FIRST_SAVE_S_MAX", 0.0
    )  # slower than the first step's wait
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train = tf1.assign_add(step, 1)
        other = tf1.train.Saver(max_to_keep=1)
        supervisor = procsv.Supervisor(
            logdir=str(tmp_path),
            saver=tf1.train.Saver(max_to_keep=2),
            final_checkpoint=False,
            save_summaries_secs=0,
            snapshot_secs=600,
        )
        with supervisor.managed_session() as session:
            session.run(train)
            other.save(session, str(tmp_path / "best"), global_step=step)
            for _ in range(3):
                session.run(train)
                supervisor.saver.save(session, supervisor.save_path, global_step=step)
            assert not (tmp_path / "model.ckpt-0.index").exists()
            journal = list(read_journal(tmp_path / "procsv" / "journal.jsonl"))
            (service,) = (e["pid"] for e in journal if (e["event"], e["role"]) == ("spawned", "checkpoint"))
            held = psutil.Process(service)  # wait for the stop: otherwise it would come after the signal
            _wait_until(lambda: held.status() == psutil.STATUS_STOPPED, "service that is stopped")
            os.kill(service, signal.SIGCONT)
            training = training_of(supervisor)
            assert training.wait_asked(NEWS_S_MAX)  # the first state, late
            for name in ("best-1", "model.ckpt-3", "model.ckpt-4"):
                _wait_for(tmp_path / f"{name}.manifest.json")  # otherwise the end waits for them, but not forever
    assert _listed(tmp_path) == ["best-1", "model.ckpt-3", "model.ckpt-4"]
    assert _there(tmp_path) == {"model.ckpt-3", "model.ckpt-4"}
    assert (tmp_path / "best-1.index").exists()
    journal = list(read_journal(tmp_path / "procsv" / "journal.jsonl"))
    durable = {Path(e["path"]).name: e["reason"] for e in journal if e["event"] == "checkpoint_durable"}
    assert durable["model.ckpt-0"] == "start"
    assert {durable["model.ckpt-3"], durable["model.ckpt-4"], durable["best-1"]} == {"manual"}
    assert not [e for e in journal if e["event"] in ("checkpoint_rejected", "checkpoint_failed")]
    assert {path.name.removesuffix(".manifest.json") for path in tmp_path.glob("*.manifest.json")} == {
        "best-1",
        "model.ckpt-3",
        "model.ckpt-4",
    }


def test_a_signal_handler_may_save_while_the_program_saves(tmp_path: Path) -> None:
    is_due = list[bool]()

    class Interrupted(tf1.train.Saver):  # type: ignore[name-defined]
        def save(self, *args: Any, **kwargs: Any) -> Any:
            path = super().save(*args, **kwargs)
            if is_due and is_due.pop():
                signal.raise_signal(signal.SIGUSR1)
            return path

    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        supervisor = procsv.Supervisor(logdir=str(tmp_path), saver=Interrupted(), save_summaries_secs=0)
        with supervisor.managed_session() as session:
            before = signal.signal(
                signal.SIGUSR1, lambda *_: supervisor.saver.save(session, supervisor.save_path, global_step=7)
            )
            is_due.append(True)
            try:
                supervisor.saver.save(session, supervisor.save_path, global_step=step)
            finally:
                signal.signal(signal.SIGUSR1, before)
        assert {"model.ckpt-0", "model.ckpt-7"} <= _there(tmp_path)
