"""`procsv launch` supervises a program without TensorFlow that has its own state source."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched, procsv
from tests.support.numpy_state import NumpyState, numpy_plan
from tests.support.numpy_training import digest, digest_after, initial
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

PROGRAM = "tests.support.numpy_training"
STEPS, STEP_S = 1000, 0.01
KILLS = 10
OPTIONS = ("--backoff", "0.05s..0.1s", "--max-failures", "40")
# Each attempt that is to be killed stands before the end until it is, and has made steps of its own by then.
KILLED = f"""
import os
from tests.support.numpy_training import train_until
from tests.support.standing import stand

attempt = int(os.environ["PROCSV_INCARNATION"])


def is_over(step):
    if attempt <= {KILLS} and step >= {STEPS * 9 // (10 * KILLS)} * attempt:
        stand()
    return step >= {STEPS}


train_until(is_over, {STEP_S})
"""


def has_snapshot_after(run: Launched, step: int) -> bool:
    return bool(run.status()["memory_step"] > step)


@pytest.mark.long
def test_a_numpy_program_killed_again_and_again_ends_bit_identical_to_an_undisturbed_one(tmp_path: Path) -> None:
    logdir, program = tmp_path / "logdir", tmp_path / "train.py"
    program.write_text(KILLED)
    with launched(logdir, *OPTIONS, str(program)) as run:
        for kill in range(KILLS):
            resumed = run.wait_event("recovered", kill + 1)[-1]["step"]
            run.wait_step((kill + 1) * STEPS // (2 * KILLS))
            # The restored slot is gone once its state is saved.
            run.wait_for("a snapshot of its own", partial(has_snapshot_after, run, resumed))
            run.kill("trainer")
            run.wait_event("restarting", kill + 1)
        assert run.wait_end() == 0, run.said()
        exits = [entry for entry in run.events("exited") if entry["role"] == "trainer"]
        assert [entry["signal"] for entry in exits] == ["SIGKILL"] * KILLS + [None]
        recovered = run.events("recovered")
        assert [entry["source"] for entry in recovered] == ["fresh"] + ["memory"] * KILLS
        assert all(entry["step"] > 0 for entry in recovered[1:])
        assert f"ended with {digest_after(STEPS)}" in run.said()
        assert run.said().count("procsv: training at step 1, ") == 1
        for entry, ended in zip(recovered[1:], exits[:-1], strict=True):
            redone = ended["step"] - entry["step"]
            told = f", {redone} step{'s' * (redone != 1)} redone" if redone else ", no step redone"
            shown = (
                told if redone >= 0 else "$"
            )  # the heartbeat may lag behind the snapshot: then the number is unknown
            assert re.search(rf" again at step {entry['step'] + 1} after [\d.]+ s{shown}", run.said(), re.MULTILINE)

    again = NumpyState(initial(), numpy_plan(logdir))
    again.restore(str(logdir / f"model.ckpt-{STEPS}"))
    assert digest(again.arrays) == digest_after(STEPS)


@pytest.mark.long
def test_a_numpy_program_that_is_stopped_resumes_from_its_last_step(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with launched(logdir, *OPTIONS, PROGRAM, str(10**6), str(STEP_S), cwd=ROOT) as run:
        run.wait_step(300)
        run.kill("watchdog", 15)
        assert run.wait_end() == 75, run.said()
        [last] = [entry for entry in run.events("exited") if entry["role"] == "trainer"]
        durable = run.events("checkpoint_durable")[-1]["step"]
        assert durable >= last["step"]

    with launched(logdir, *OPTIONS, PROGRAM, str(durable + 10), "0", cwd=ROOT) as run:
        assert run.wait_end() == 0, run.said()
        assert f"from step {durable} on disk" in run.said()
        assert f"ended with {digest_after(durable + 10)}" in run.said()
        report = json.loads(procsv("report", str(logdir), "--json").stdout)
        assert run.status()["goodput"] == pytest.approx(report["goodput"], abs=0.1), "one goodput, of the run"
        assert run.status()["launch_goodput"] < run.status()["goodput"], "a launch of ten steps"
        assert run.events("run_completed")[-1]["goodput"] == pytest.approx(report["goodput"], abs=0.1)


def test_deaths_by_the_fault_plan_are_named_as_such_in_the_journal_on_the_terminal_and_in_the_report(
    tmp_path: Path,
) -> None:
    faults = ("kill trainer at step 20", "segfault trainer at step 40", "exit trainer with 7 at step 60")
    plan = [word for fault in faults for word in ("--fault", fault)]
    with launched(
        tmp_path / "logdir", *OPTIONS, *plan, "--steps-total", "80", PROGRAM, "80", str(STEP_S), cwd=ROOT
    ) as run:
        assert run.wait_end() == 0, run.said()
        assert run.status()["steps_total"] == 80
        assert "80 of 80   on disk 80" in procsv("status", str(run.logdir)).stdout
        evidence = [entry["evidence"] for entry in run.events("exited", "trainer")][: len(faults)]
        assert [fault in told for fault, told in zip(faults, evidence, strict=True)] == [True] * len(faults), evidence
        assert f" ({faults[0]}): SIGKILL, at step 20" in run.said()
        assert "sender unknown" not in run.said()
        assert faults[0] in (run.logdir / "procsv" / "crashes" / "1.txt").read_text()


def test_a_run_whose_working_directory_was_deleted_and_made_again_restarts_there(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "train.py").write_text("from tests.support.numpy_training import main\nmain(10**6, 0.01)\n")
    with launched(tmp_path / "logdir", "train.py", cwd=app) as run:
        run.wait_for("a snapshot", partial(has_snapshot_after, run, 0))
        new = shutil.copytree(app, tmp_path / "new")
        shutil.rmtree(app)
        new.rename(app)
        run.kill("trainer")
        assert run.wait_event("recovered", 2)[1]["source"] == "memory"
