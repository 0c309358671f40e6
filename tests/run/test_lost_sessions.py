"""A monitored session that loses its connection to a server is replaced in the same process, and
the journal records it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import procsv
from procsv.base.journal.file import read_journal as read_lines
from procsv.report.time_ledger import take_accounts
from tests.support.journal import read_journal
from tests.support.launched import launched

tf1 = tf.compat.v1

PROGRAM = """
import os
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
step = tf.train.get_or_create_global_step()
train = tf.assign_add(step, 1)


class Lose(tf.train.SessionRunHook):
    losses = [20, 40]  # calls

    def __init__(self):
        self.calls = 0

    def before_run(self, run_context):
        self.calls += 1
        if self.calls in self.losses:
            raise tf.errors.UnavailableError(None, None, "the server is gone")


hooks = [Lose(), tf.train.StopAtStepHook(last_step=60)]
with tf.train.MonitoredTrainingSession(checkpoint_dir=os.environ["PROCSV_LOGDIR"], hooks=hooks) as session:
    while not session.should_stop():
        session.run(train)
"""


@pytest.mark.long
def test_each_lost_session_is_journaled_with_its_cost_and_the_trainer_is_not_restarted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with launched(tmp_path / "run", "--drop-in", str(tmp_path / "train.py")) as run:
        assert run.wait_end() == 0
    lost, anew = run.events("session_lost"), run.events("session_recovered")
    assert [entry["error"] for entry in lost] == ["UnavailableError: the server is gone"] * 2
    assert len(anew) == 2
    began_s = run.events("run_started")[0][
        "time"
    ]  # the time at which the watchdog learns of a loss is not the time of the loss
    for before, after in zip(lost, anew, strict=True):
        assert after["source"] in ("memory", "checkpoint")
        assert after["at"] == after["step"] + 1, "ready with the first new step"
        assert after["lost_steps"] == max(0, before["step"] - after["step"])
        assert 0.0 <= after["seconds"] <= after["time"] - began_s
    assert [len(run.events(name)) for name in ("recovered", "ready", "spawned")] == [1, 1, 3]
    assert run.events("run_completed")[0]["step"] == 60
    assert run.status()["steps_total"] == 60, "a hook has told"
    account = run.account()
    assert account.lost_sessions == 2
    assert account.lost_steps == sum(after["lost_steps"] for after in anew)
    assert sum(account.totals.values()) == pytest.approx(account.wall_s, abs=1e-6)


@pytest.mark.long
def test_a_session_lost_before_the_first_step_counts_as_part_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("[20, 40]", "[1]").replace("train)", "train); pause.wait(0.02)"))
    source = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(f"import threading\npause = threading.Event()\n{source}".replace("=60", "=2000"))
    with launched(tmp_path / "run", "--drop-in", str(tmp_path / "train.py"), standby="warm") as run:
        for name in ("ready", "recovered"):
            run.wait_event(name)  # a loss would have been reported before them
        assert [len(run.events(name)) for name in ("ready", "recovered", "session_lost")] == [1, 1, 0]


def test_a_lost_session_is_journaled_without_a_watchdog_too(tmp_path: Path) -> None:
    class Lose(tf1.train.SessionRunHook):  # type: ignore[name-defined]
        calls = 0

        def before_run(self, run_context: Any) -> None:
            self.calls += 1
            if self.calls in (3, 4):  # the next session is lost before its first step
                raise tf.errors.AbortedError(None, None, "gone")

    with tf.Graph().as_default():
        train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        with procsv.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, hooks=[Lose()]
        ) as session:
            for _ in range(4):
                session.run(train)
    path = tmp_path / "procsv" / "journal.jsonl"
    journal = read_journal(path)
    events = [entry["event"] for entry in journal if entry["role"] == "trainer" and "checkpoint" not in entry["event"]]
    assert events == ["spawned", "ready", "recovered", "session_lost", "session_recovered", "exited", "run_completed"]
    (anew,) = (entry for entry in journal if entry["event"] == "session_recovered")
    assert (anew["step"], anew["at"], anew["lost_steps"]) == (2, 3, 0)
    account, _ = take_accounts(read_lines(path))
    assert account is not None
    assert (account.lost_sessions, account.lost_steps) == (1, 0)
