"""Row 25: after a kill of the watchdog at any moment no process stays, and the next launch resumes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from procsv.base.units import show_time
from procsv.ipc.messaging.launch_settings import Range
from tests.faults.test_rows_without_tensorflow import LAUNCHER, TRAINS
from tests.support.launched import launched, settings_text

pytestmark = pytest.mark.fault

PROGRAM = """
run = train()
if sys.argv[1] == "crash":
    sys.exit(3)
if sys.argv[1] == "train":
    until_stopped(run)
"""
TOLD = settings_text(grace_s=12.0, backoff=Range(0.05, 0.1))


@pytest.mark.parametrize(
    ("moment", "program"),
    [
        ("watchdog.before_exec=2*off->kill", "train"),  # the third process is the trainer
        ("watchdog.after_exec=2*off->kill", "train"),
        ("watchdog.back_off=kill", "crash"),
        ("watchdog.mid_stop=kill", "stop"),
        ("watchdog.rewriting_status=3*off->kill", "train"),
    ],
)
def test_row_25_a_watchdog_killed_at_each_moment_leaves_no_process_and_the_next_launch_resumes(
    tmp_path: Path, moment: str, program: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + PROGRAM)
    command = (TOLD, str(tmp_path / "train.py"))
    how = "train" if program == "stop" else program
    with launched(tmp_path / "run", *command, how, launcher=LAUNCHER, PROCSV_FAILPOINTS=moment) as run:
        if program == "stop":
            run.wait_event("recovered")
            run.process.terminate()
        assert run.wait_end() == -signal.SIGKILL
    shown = run.ask_status()
    assert (shown["state"], shown["pid"]) == ("interrupted", run.process.pid)
    told = settings_text(grace_s=12.0, backoff=Range(0.05, 0.1), on_event=f"tee -a {tmp_path}/heard")
    # It waits for what was left, or removes it.
    with launched(tmp_path / "run", told, command[1], "done", launcher=LAUNCHER) as run:
        assert run.wait_end() == 0
    assert run.events("run_started")[1]["seen_until"] == pytest.approx(shown["seen_until"])
    heard = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    assert heard[0]["event"] == "run_started"
    assert show_time(shown["seen_until"]) in heard[0]["text"]
    assert heard[0]["text"] in run.said()
