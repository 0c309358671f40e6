"""A long evaluation is no hang, loses nothing to a notice, and shows where the fit is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import keras_evaluation
from tests.support.launched import launched, procsv

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = str(Path(keras_evaluation.__file__))


def test_an_evaluation_interrupted_by_a_notice_is_repeated_and_no_batch_is_lost(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", PROGRAM) as run:
        wanted = run.digest_at_end()
    # An evaluation takes longer than a step may.
    with launched(tmp_path / "run", "--hang-timeout", "4s", PROGRAM, "--test-ms", "100", STANDS="1") as run:
        run.wait_for("the second evaluation", lambda: "evaluating" in run.said())
        assert run.status()["fit"] == {"number": 1, "epoch": 2, "epochs": 3, "batch": 10, "batches": 10}
        loss = run.status()["loss"]
        assert (loss["name"], loss["step"], 0.0 < loss["value"] < 100.0) == ("loss", 20, True), (
            "as of the newest snapshot"
        )
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == exit_codes.RESUMABLE
        assert run.events("hang_detected") == []
        assert [(e["reason"], e["step"]) for e in run.events("checkpoint_durable")][-1] == ("preempt", 20)
    assert "epoch 2 of 3, batch 10 of 10" in procsv("status", str(tmp_path / "run")).stdout
    assert "epoch 2 of 3, batch 10 of 10" in procsv("report", str(tmp_path / "run")).stdout
    with launched(tmp_path / "run", PROGRAM) as run:
        assert run.digest_at_end() == wanted
        assert run.events("recovered")[-1]["step"] == 20
        assert run.status()["fit"] == {"number": 1, "epoch": 3, "epochs": 3, "batch": 10, "batches": 10}
