"""A disk that is full for a while, and a logdir that goes away and comes back: said, shown, survived."""

import os
from pathlib import Path

import pytest

from tests.support.launched import launched

pytestmark = pytest.mark.fault


def test_a_full_disk_and_a_lost_logdir_are_said_once_shown_in_status_and_training_goes_on(tmp_path: Path) -> None:
    logdir, away = tmp_path / "digits", tmp_path / "away"
    args = ("procsv.examples.digits", "--steps", "1000000", "--step-ms", "4", "--save-model-secs", "0.5")
    full = "checkpoint.before_rename=3*enospc"
    with launched(logdir, "--grace", "10s", *args, PROCSV_FAILPOINTS=full) as run:
        (failed,) = run.wait_event("checkpoint_failed")
        shown = run.wait_for("the error in status", lambda: (s := run.status())["save_error"] and s)
        assert "No space left on device" in failed["error"]
        assert shown["save_error"] == failed["error"]
        assert shown["next_save_in"] >= 0.0
        assert shown["state"] == "running"
        run.wait_event("checkpoint_durable")
        assert (run.status()["save_error"], run.status()["next_save_in"]) == (None, None)
        assert len(run.events("checkpoint_failed")) == 1, "three failures for one cause are one piece of news"
        assert "checkpoints are saved again" in run.said()

        logdir.rename(away)
        run.wait_for("word of it", lambda: f"{logdir} does not exist any more" in run.said())
        trained = run.said().count("steps/s")
        run.wait_for("more training", lambda: run.said().count("steps/s") > trained)
        away.rename(logdir)
        run.wait_for("the end of it", lambda: run.said().count("checkpoints are saved again") == 2)
        os.kill(run.process.pid, 2)
        assert run.wait_end() == 75
    ours = [line for line in run.said().splitlines() if line.startswith("procsv: ")]
    assert len([line for line in ours if "does not exist any more" in line]) == 1
    assert len({e["pid"] for e in run.events("spawned") if e["role"] == "trainer"}) == 1
