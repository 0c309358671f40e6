"""The custom loop example ends with the same bits when it is killed, stopped and launched again."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import standing
from tests.support.launched import Launched, launched

pytestmark = pytest.mark.fault

PROGRAM = (standing.PROGRAM, "custom_loop", "--steps", "700")
STANDS_AT = "480"  # of those that are killed and stopped
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.1")


def digest(run: Launched) -> str:
    found = re.findall(r"variables ([0-9a-f]{16})", run.said())
    assert found, run.summary()
    return str(found[-1])


@pytest.mark.long
def test_a_loop_that_is_killed_and_stopped_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", *PROGRAM) as run:
        run.assert_completed()
        wanted = digest(run)
        assert [e["reason"] for e in run.events("checkpoint_durable")] == ["manual", "final"]

    seed = random.Random(5)
    with launched(tmp_path / "run", *QUICK, *PROGRAM, "--step-ms", "12", STANDS_AT=STANDS_AT) as run:
        for count, step in enumerate(sorted(seed.sample(range(20, 400), 3)), start=1):
            run.wait_step(step)
            run.kill("trainer")
            run.wait_event("recovered", count + 1)
        run.wait_step(450)
        run.kill("watchdog", signal.SIGTERM)  # a preemption: saved within the grace
        assert run.wait_end() == exit_codes.RESUMABLE
    with launched(tmp_path / "run", *QUICK, *PROGRAM) as run:
        run.assert_completed()
        assert digest(run) == wanted
        recovered = run.events("recovered")
        # It resumes from its checkpoint if it was killed again before another snapshot.
        assert [entry["source"] for entry in recovered[:2]] == ["fresh", "memory"]
        assert "fresh" not in [entry["source"] for entry in recovered[1:]]
        stopped = run.events("stopped")[0]  # its last checkpoint is of its last step, whatever caused it
        assert recovered[4]["step"] == stopped["durable_step"] == stopped["step"] >= 450
