"""The Keras example ends with the same bits, and does nothing twice, when it is killed, preempted
and launched again.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import standing
from tests.support.launched import Launched, launched

pytestmark = pytest.mark.fault

PROGRAM = (standing.PROGRAM, "keras_digits", "--epochs", "10")
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.1")


def ending(run: Launched) -> str:
    found = re.findall(r"variables [0-9a-f]{16}  history [0-9a-f]{16}", run.said())
    assert found, run.summary()
    return str(found[-1])


def test_a_fit_that_is_killed_and_preempted_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", *PROGRAM) as run:
        run.assert_completed()
        wanted = ending(run)
        assert [e["reason"] for e in run.events("checkpoint_durable")] == ["final"]
    with launched(tmp_path / "run", *QUICK, *PROGRAM, "--batch-ms", "20", STANDS_AT="120") as run:
        run.wait_step(40)
        run.kill("trainer")
        run.wait_event("recovered", 2)
        run.wait_step(100)
        run.kill("watchdog", signal.SIGTERM)  # a preemption: the state of the batch under way is saved
        assert run.wait_end() == exit_codes.RESUMABLE
        stopped = run.events("checkpoint_durable")[-1]
        assert stopped["reason"] == "preempt"
    with launched(tmp_path / "run", *QUICK, *PROGRAM) as run:
        run.assert_completed()
        assert ending(run) == wanted
        assert run.events("recovered")[2]["step"] == stopped["step"] >= 100
    with launched(tmp_path / "run", *PROGRAM) as run:  # the fit is over: no batch is trained any more
        run.assert_completed()
        assert ending(run) == wanted
        assert len(run.events("recovered")) == 3
