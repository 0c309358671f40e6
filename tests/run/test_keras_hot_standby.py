"""A hot standby has already traced the fit: the next trainer traces nothing and ends with the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import keras_hot
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = str(Path(keras_hot.__file__))


def ending(said: str) -> str:
    return str(re.findall(r"digest ([0-9a-f]{16})", said)[-1])


def test_a_fit_that_continues_in_a_hot_standby_is_not_traced_again_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "go").touch()
    with launched(tmp_path / "undisturbed", PROGRAM, cwd=alone) as run:
        run.assert_completed()
        wanted = ending(run.said())
    # With a snapshot to restore and without one; without one the standby's own step is undone.
    for seconds, source in (("0.2", "memory"), ("600", "fresh")):
        where = tmp_path / source
        where.mkdir()
        options = ("--snapshot-secs", seconds, "--backoff", "0.1s..1s")
        with launched(tmp_path / f"run-{source}", *options, PROGRAM, cwd=where, standby="hot") as run:
            ready = run.wait_event("standby_ready")[0]
            run.wait_step(99)
            run.kill("trainer")
            (where / "go").touch()
            run.assert_completed()
            assert ending(run.said()) == wanted
            assert [entry["pid"] for entry in run.events("promoted")] == [ready["pid"]]
            assert run.events("recovered")[-1]["source"] == source
            logs = run.logdir / "procsv" / "logs"
            assert "rehearsed a step" in (logs / "standby.1.log").read_text()
            assert "traced" not in (logs / "trainer.2.log").read_text()
