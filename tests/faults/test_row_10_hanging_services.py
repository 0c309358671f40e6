"""Row 10: a frozen or wedged service is found and replaced while training goes on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from procsv.cli.directory import find_run
from procsv.cli.status import read_status
from procsv.ipc.messaging.launch_settings import Range
from procsv.services.summary import continuity
from tests.support import standing
from tests.support.launched import NOT_SAVED, Launched, launched, settings_text

pytestmark = pytest.mark.fault

SETTINGS = {"hang_limits_s": {"service": 8.0}, "hang_abort_s": 0.3, "backoff": Range(0.05, 60.0)}
LAUNCHER = [sys.executable, str(Path(__file__).with_name("launch.py"))]
STAND_IN_LAUNCHER = [sys.executable, str(Path(__file__).parents[1] / "watchdog" / "stand_ins" / "launch.py")]
# Of the training beside frozen services: it stands in its middle until they are frozen, and what follows is shorter than they
# are waited for, unless the machine is busy.  A summary comes later than a step that is held up.
STEPS, STEP_MS, SUMMARY_S, FROZEN_S, STANDS_AT = 700, 6, 1.0, 10.0, 400

PROGRAM = """
import threading
from procsv.training.runtime.context import current

stopped = threading.Event()
current().stops.add_listener(lambda reason: stopped.set())
print("begun", flush=True)
stopped.wait()
"""


def ended(run: Launched, role: str) -> list[tuple[str, str]]:
    return [(entry["cause"], entry["evidence"]) for entry in run.events("exited", role)]


@pytest.mark.long
def test_row_10_frozen_services_are_replaced_while_training_goes_on_and_the_end_waits_no_longer(
    tmp_path: Path,
) -> None:
    digits = (standing.PROGRAM, "digits", "--steps", str(STEPS), "--step-ms", str(STEP_MS), "--save-model-secs", "0.5")
    settings = settings_text(**{**SETTINGS, "hang_limits_s": {"service": FROZEN_S}}, snapshot_s=0.2)
    frozen = tmp_path / "frozen"
    more = ("--summary-secs", str(SUMMARY_S))
    stands, until = str(STANDS_AT), str(frozen)
    with launched(
        tmp_path / "logdir", settings, *digits, *more, launcher=LAUNCHER, STANDS_AT=stands, STANDS_UNTIL=until
    ) as run:
        run.wait_event("checkpoint_durable")
        for role in ("checkpoint", "summary"):
            run.kill(role, signal.SIGSTOP)
        assert read_status(find_run(str(run.logdir)))["running"]
        frozen.touch()
        run.wait_step(STEPS - 100)  # only the end waits for them
        assert run.wait_end() == 0
    assert len(run.events("spawned", "trainer")) == 1
    for role in ("checkpoint", "summary"):
        found = run.events("hang_detected", role)[0]
        assert (found["incarnation"], found["seconds"] >= FROZEN_S) == (1, True)
        (cause, evidence), *_, last = ended(run, role)
        assert cause == "hang", evidence
        assert ("its main loop" in evidence, "SIGSTOP" in evidence) == (True, True)
        assert last[0] == "completed"
        assert run.events("service_restarted", role)[0]["incarnation"] == 2
    final = run.events("checkpoint_durable")[-1]
    assert (final["step"], final["incarnation"] > 1) == (STEPS, True)
    problems = continuity.check_continuity(run.logdir).problems
    assert [
        text for text in problems if "global_step/sec" not in text
    ] == []  # the clock causes it, with or without steps


@pytest.mark.long
def test_row_10_a_service_with_a_wedged_loop_is_replaced_and_its_frame_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    arguments = (settings_text(**SETTINGS, grace_s=10.0), str(tmp_path / "train.py"))
    with launched(tmp_path / "logdir", *arguments, launcher=STAND_IN_LAUNCHER, STAND_IN_CHECKPOINT="wedged") as run:
        run.wait_event("service_restarted")
        log = run.logdir / "procsv" / "logs" / "checkpoint.1.log"
        assert "in gets_nowhere" in log.read_text()  # the stacks of all threads, for `procsv logs --role checkpoint`
        run.wait_for("serving", lambda: serving(run))

        # A service stopped when the run is to end is woken for that.
        run.process.send_signal(signal.SIGSTOP)  # it does not find them before that
        for role in ("checkpoint", "summary"):
            run.kill(role, signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGCONT):
            run.process.send_signal(number)
        assert run.wait_end() in NOT_SAVED
    (cause, evidence), last = ended(run, "checkpoint")
    assert (cause, last[0]) == ("hang", "completed")
    assert "gets_nowhere (" in evidence
    assert [cause for cause, _ in ended(run, "summary")] == ["completed"]
    assert len(run.events("spawned", "trainer")) == 1


def serving(run: Launched) -> bool:
    return all(
        row["state"] == "serving" for row in run.status()["processes"] if row["role"] in ("checkpoint", "summary")
    )
