"""`status` and TensorBoard show what snapshots cost and how they are spaced for it."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import procsv
from tests.support.launched import NEWS_S_MAX, launched
from tests.support.launched import procsv as command

tf1 = tf.compat.v1
SCALARS = {"procsv/snapshot_interval", "procsv/snapshot_stall_ms"}


def _status(logdir: Path, *options: str) -> str:
    answer = command("status", str(logdir), *options)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def _scalars(logdir: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for path in logdir.glob("events.out*"):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(value.simple_value)
    return found


def _train_until(session: Any, train: Any, found: Callable[[], Any]) -> Any:
    deadline_s, pause = time.monotonic() + NEWS_S_MAX, threading.Event()
    while not (result := found()):
        assert time.monotonic() < deadline_s
        for _ in range(20):
            session.run(train)
            pause.wait(0.01)
    return result


@pytest.mark.fault
def test_status_and_tensorboard_show_the_interval_that_auto_chose_and_why(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train = tf1.assign_add(step, 1)
        supervisor = procsv.Supervisor(logdir=str(logdir), summary_op=None, save_summaries_secs=1)
        with supervisor.managed_session() as session:
            _train_until(session, train, lambda: json.loads(_status(logdir, "--json"))["snapshots"]["taken"] >= 2)
            shown = json.loads(_status(logdir, "--json"))["snapshots"]
            text = " ".join(_status(logdir).split())
            _train_until(session, train, lambda: _scalars(logdir).keys() >= SCALARS)
    scalars = _scalars(logdir)
    assert shown["spacing"] == "auto"
    assert 0.1 <= shown["interval"] <= 600.0
    assert 0.0 < shown["mean_stall_ms"] <= shown["mean_cost_ms"]
    assert shown["share"] <= 0.01001
    assert "ms for one (auto: " in text
    assert min(scalars["procsv/snapshot_interval"]) >= 0.1 - 1e-6
    assert min(scalars["procsv/snapshot_stall_ms"]) > 0.0
    assert json.loads(_status(logdir, "--json"))["snapshots"] is None, "nobody takes any now"


@pytest.mark.fault
def test_tensorboard_shows_what_a_monitored_sessions_snapshots_cost(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        with procsv.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_summaries_secs=1, snapshot_secs=0.2
        ) as session:
            _train_until(session, train, lambda: _scalars(tmp_path).keys() >= SCALARS)
    scalars = _scalars(tmp_path)
    assert max(scalars["procsv/snapshot_interval"]) == pytest.approx(0.2)
    assert min(scalars["procsv/snapshot_stall_ms"]) > 0.0


@pytest.mark.long
@pytest.mark.fault
def test_an_interval_from_the_command_line_is_shown_as_given(tmp_path: Path) -> None:
    with launched(tmp_path / "digits", "--snapshot-secs", "0.3", "procsv.examples.digits", "--step-ms", "5") as run:
        run.wait_event("recovered")
        shown = run.wait_for("a snapshot", lambda: _taken(run.status()))
        run.process.terminate()
        assert run.wait_end() == 75
    assert (shown["spacing"], shown["interval"]) == ("told", 0.3)


def _taken(status: dict[str, Any]) -> dict[str, Any]:
    snapshots: dict[str, Any] | None = status["snapshots"]
    return snapshots if snapshots is not None and snapshots["taken"] else {}
