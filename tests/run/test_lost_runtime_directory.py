"""A runtime directory that is swept under a live run, and one that is full: training, checkpoints and commands go on."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from procsv.base.run.paths import find_paths
from tests.support.launched import Launched, launched, procsv
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

PROGRAM = ("tests.support.numpy_training", "1000000", "0.01")
OPTIONS = ("--backoff", "0.05s..0.1s", "--standby", "warm")


def sweep(run: Launched, count: int) -> None:
    """Removes the runtime directory, and waits until it is back for the `count`th time."""
    shutil.rmtree(find_paths(run.logdir).run_dir)
    run.wait_event("ground_restored", count)


def saves_again(run: Launched) -> None:
    durable = run.events("checkpoint_durable")[-1]["step"]
    run.wait_for("a later checkpoint", lambda: run.events("checkpoint_durable")[-1]["step"] > durable)


def test_row_50_training_and_checkpoints_go_on_and_a_crash_is_recovered_when_the_runtime_directory_was_removed(
    tmp_path: Path,
) -> None:
    logdir = tmp_path / "logdir"
    with launched(logdir, *OPTIONS, *PROGRAM, cwd=ROOT, standby=None) as run:
        run.wait_event("checkpoint_durable")
        run.wait_event("standby_ready")
        pids = {role: run.pid(role) for role in ("trainer", "checkpoint", "summary")}
        for count in (1, 2):
            sweep(run, count)
            saves_again(run)
        assert {role: run.pid(role) for role in pids} == pids
        shown = run.status()
        assert (shown["ground_error"], shown["save_error"], shown["restarts"]) == (None, None, 0)
        step = shown["step"]

        run.kill("checkpoint")
        run.wait_for("another service", lambda: run.pid("checkpoint") != pids["checkpoint"])
        saves_again(run)
        run.kill("trainer")
        recovered = run.wait_event("recovered", 2)[-1]
        assert recovered["source"] in ("memory", "checkpoint")
        assert recovered["step"] >= step
        sweep(run, 3)
        run.wait_for("another standby", partial(run.wait_event, "standby_ready", 2))
        stopped = procsv("stop", str(logdir))
        assert stopped.returncode == 0, stopped.stderr
        assert run.wait_end() == 75, run.said()
        assert "Traceback" not in run.said()
        for log in (logdir / "procsv" / "logs").iterdir():
            assert "Traceback" not in log.read_text(), log
