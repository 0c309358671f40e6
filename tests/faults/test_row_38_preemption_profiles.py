"""Row 38: a preemption at any moment, by any profile, loses no step and is resumed.

Each profile of `procsv preempt` has one of four parallel runs, which goes through all moments with
one launch each: the same command resumes where the previous launch was preempted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import find_run_in
from procsv.cli.status import read_status
from procsv.drill.preemption import PROFILES
from procsv.testing import Launch
from procsv.testing.run import Run, news_s_max
from tests.support.launched import environment
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

PROGRAM = """
import sys, threading
moment = sys.argv[1]
if moment == "back-off":
    raise SystemExit(3)

from tests.support.numpy_training import training
asleep = threading.Event()

def wait(seconds):
    print("it begins", flush=True)
    asleep.wait(seconds)

with training(save_s=600 if moment == "evaluation" else 1) as model:
    first = model.step
    while not model.should_stop():
        if moment == "compile":
            model.pass_step(lambda: wait(None))  # which does not end
        model.train()
        if moment == "evaluation" and model.step == first + 10:
            model.evaluate(lambda: wait(3))
        asleep.wait(0.02)
"""

FAILPOINTS: dict[str, dict[str, Any]] = {
    "save": {"PROCSV_FAILPOINTS": "checkpoint.before_rename=1*off->1*sleep(3)"},
    "restore": {"PROCSV_FAILPOINTS": "trainer.restore=1*sleep(600)"},  # until it is killed, within the run's own grace
}


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def _is_restoring(run: Run) -> bool:
    found = find_run_in(find_paths(run.logdir))  # read in this process: an interpreter for each poll is slow
    status = read_status(found) if found is not None else {"processes": []}
    return any((one["role"], one["phase"]) == ("trainer", "restore") for one in status["processes"])


def _has_files(directory: Path) -> bool:
    return any(files for _, _, files in os.walk(directory))  # os.walk tolerates directories that disappear


def _wait_until(moment: str, run: Run, steps_before: int) -> None:
    if moment in ("compile", "evaluation"):
        run.wait_for(moment, lambda: run.said().count("it begins") > (moment == "evaluation"))
    elif moment == "step":
        run.wait_step(20)
    elif moment == "save":
        staging = run.logdir / "procsv" / "staging"
        run.wait_for("files of a save", lambda: _has_files(staging) or run.step() > steps_before + 150)
    elif moment == "restore":
        run.wait_for("the restore", lambda: _is_restoring(run))
    else:
        run.wait_event("restarting")


def _preempt(runs: dict[str, Run]) -> dict[str, dict[str, Any]]:
    """Preempt all runs at once. Return the command's output for each."""
    argv = [sys.executable, "-m", "procsv", "preempt", "--json", "--profile"]
    started = {
        profile: subprocess.Popen(
            [*argv, profile, str(run.logdir)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for profile, run in runs.items()
    }
    outputs = {profile: process.communicate(timeout=news_s_max())[0] for profile, process in started.items()}
    for profile, process in started.items():
        assert process.returncode == 0, (profile, outputs[profile], runs[profile].journal()[-10:])
    return {profile: json.loads(output) for profile, output in outputs.items()}


@pytest.mark.long
def test_row_38_every_profile_preempts_at_every_moment_without_losing_a_step(
    procsv_launch: Launch, program: str, tmp_path: Path
) -> None:
    saved = dict.fromkeys(PROFILES, 0)
    for moment in ("compile", "step", "save", "restore", "back-off", "evaluation"):
        grace = (
            "8s" if moment in ("compile", "restore") else "25s"
        )  # programs at these moments do not end by themselves
        options = ["--standby", "off", "--grace", grace, "--backoff", "60s"]
        runs = {
            profile: procsv_launch(
                program,
                moment,
                options=options,
                logdir=tmp_path / profile,
                PYTHONPATH=str(ROOT),
                **FAILPOINTS.get(moment, {}),
            )
            for profile in PROFILES
        }
        for profile, run in runs.items():
            _wait_until(moment, run, saved[profile])
        outcomes = _preempt(runs)
        for profile, run in runs.items():
            said, where = outcomes[profile], (profile, moment, outcomes[profile])
            # Before the first step nothing is saved beyond what the same command starts with.
            assert run.wait_end() == (70 if moment == "compile" else 75), where
            assert said["in_time"], where
            assert said["lost_steps"] == 0, where
            assert said["killed"] == [], where
            assert 0 < said["margin"] <= PROFILES[profile].grace_s, where
            assert said["saved_step"] >= saved[profile], where
            assert len(run.events("preempt_notice")) >= len(run.events("run_started")), where
            if moment not in (
                "compile",
                "restore",
                "back-off",
            ):  # it trained a step, so it reports what it resumed from
                since = run.events("run_started")[-1]["time"]
                resumed = [one["step"] for one in run.events("recovered", "trainer") if one["time"] > since]
                assert resumed == [saved[profile]], where
                assert said["saved_step"] >= run.events("exited", "trainer")[-1]["step"], where
            saved[profile] = said["saved_step"]
