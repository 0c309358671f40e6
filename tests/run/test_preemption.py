"""A preemption notice, whatever its source and whatever the program does, is answered by a save
within the grace period.
"""

import os
import signal
from pathlib import Path

import pytest

from procsv.testing import Launch
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

TRAINS = ("tests.support.numpy_training", "1000000", "0.02")
ALONE = ("--standby", "off")  # a standby takes seconds of a core and is not under test here


def test_a_notice_to_the_watchdog_ends_the_run_with_75_and_the_same_command_loses_no_step(
    procsv_launch: Launch,
) -> None:
    run = procsv_launch(*TRAINS, options=[*ALONE, "--preempt-signal", "SIGUSR1"], PYTHONPATH=str(ROOT))
    run.wait_event("recovered")
    run.wait_step(10)
    os.kill(run.process.pid, signal.SIGUSR1)
    assert run.wait_end() == 75
    (notice,) = run.events("preempt_notice")
    assert (notice["source"], notice["grace"]) == ("SIGUSR1", 25.0)
    ended, saved = run.events("exited", "trainer")[0], run.events("checkpoint_durable")[-1]
    assert saved["reason"] == "preempt"
    assert saved["step"] == ended["step"]

    again = procsv_launch(*TRAINS, options=[*ALONE, "--preempt-signal", "SIGUSR1"], PYTHONPATH=str(ROOT))
    again.wait_event("recovered", 2)
    assert again.events("recovered")[1]["step"] == ended["step"]
    os.kill(again.pid("trainer"), signal.SIGUSR1)  # to the program itself: it is started again at once
    again.wait_event("recovered", 3)
    first, second = again.events("exited", "trainer")
    assert second["code"] == 75
    assert again.events("recovered")[2]["step"] == second["step"] >= first["step"]
    assert again.events("preempt_notice")[1]["source"] == "SIGUSR1 to the trainer"
    again.kill("watchdog", signal.SIGTERM)
    again.kill("watchdog", signal.SIGTERM)  # sent twice, as schedulers do: it gets no less time
    assert again.wait_end() == 75
    assert again.events("checkpoint_durable")[-1]["step"] == again.events("exited", "trainer")[-1]["step"]


STUBBORN = """
import os, time
import procsv
from tests.support.numpy_training import training

print("preempted at the start:", procsv.preempted(), flush=True)
with training() as model:
    last = model.step + 20
    while model.step < last or os.environ["PROCSV_INCARNATION"] == "1":  # which does not end by itself
        model.train()
        time.sleep(0.02)
        if procsv.preempted():
            print("preempted while it trains:", procsv.preempted(), flush=True)
"""
# With TensorFlow, because a Supervisor has a part in how it ends.
NEVER_ASKS = """
import logging, threading
import tensorflow as tf
import procsv
logging.basicConfig()
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
sv = procsv.Supervisor(summary_op=None, save_model_secs=600)
with sv.managed_session() as sess:
    while sess.run(train) < 4000:
        threading.Event().wait(0.02)
"""


@pytest.mark.long
def test_a_program_that_ignores_the_notice_is_killed_after_the_grace_period_and_loses_almost_nothing(
    procsv_launch: Launch, tmp_path: Path
) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN)
    run = procsv_launch(
        str(program),
        faults=["preempt trainer with grace 10s at step 50"],
        options=[*ALONE, "--grace", "300s", "--snapshot-secs", "600"],  # by which it would end the program itself
        PYTHONPATH=str(ROOT),
    )
    assert run.wait_end() == 0
    killed, _ = run.events("exited", "trainer")
    assert (killed["signal"], killed["cause"]) == ("SIGKILL", "stopped")
    assert run.events("checkpoint_durable")[1]["reason"] == "preempt"
    resumed = run.events("recovered")[1]
    assert 50 <= resumed["step"] <= killed["step"], "the state was taken at the notice, not at the start"
    assert run.events("restarting")[0]["delay"] == 0
    assert "preempted at the start: False" in run.said()
    assert "preempted while it trains: True" in run.said()


@pytest.mark.long
def test_a_program_that_never_checks_should_stop_gets_a_clear_reason_why_it_ends(
    procsv_launch: Launch, tmp_path: Path
) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(NEVER_ASKS)
    run = procsv_launch(str(program), options=[*ALONE, "--grace", "30s"])
    run.wait_step(10)
    run.kill("watchdog", signal.SIGINT)
    assert run.wait_end() == 75
    assert "procsv: 10 s after " in run.said()
    assert run.events("stopped")[0]["step"] == run.events("stopped")[0]["durable_step"]


@pytest.mark.parametrize("when", ["import", "back-off"])
def test_a_notice_before_the_program_can_hear_it_ends_the_run_in_time(
    procsv_launch: Launch, tmp_path: Path, when: str
) -> None:
    program = tmp_path / "early.py"
    program.write_text("import threading; threading.Event().wait()" if when == "import" else "raise SystemExit(3)")
    run = procsv_launch(str(program), options=[*ALONE, "--backoff", "60s"])
    if when == "import":
        run.wait_event("spawned", role="trainer")
    else:
        run.wait_event("restarting")
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.wait_end() in (70, 130)  # nothing is saved: killed, or interrupted
    assert len(run.events("preempt_notice")) == 1
    assert len(run.events("spawned", "trainer")) == 1
