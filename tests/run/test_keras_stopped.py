"""A fit that stops because its run ends is incomplete: the same command trains the rest and ends the same way."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import keras_stopped
from tests.support.launched import launched, python

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = str(Path(keras_stopped.__file__))


@pytest.mark.parametrize(("at", "batches"), [("batch", keras_stopped.STOPPED_AT), ("epoch", 20)])
def test_a_program_that_stops_its_fit_at_sigterm_trains_on_at_the_next_launch(
    tmp_path: Path, at: str, batches: int
) -> None:
    wanted = re.findall(r"digest \w+", python(PROGRAM, at).stdout)
    assert len(wanted) == 1
    with launched(tmp_path / "run", "--drop-in", PROGRAM, at, WAITS="1") as run:
        run.wait_for("the fit", lambda: run.said().count("a batch") >= batches)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == exit_codes.RESUMABLE
        before = run.said()  # including the program's last line: it ends by itself
    with launched(tmp_path / "run", "--drop-in", PROGRAM, at) as run:
        run.assert_completed()
        assert re.findall(r"digest \w+", run.said().removeprefix(before)) == wanted
        assert "had already ended" not in run.said()
        assert run.said().count("a batch") == 10 * keras_stopped.EPOCHS
