"""With --consistent-snapshots over several machines no task is paused, and every snapshot says that
it may mix steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.test_consistent_snapshots import PROGRAM, wait_saved
from tests.support.launched import procsv
from tests.support.machines import machines
from tests.support.replicas import text_of

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0", "ps.0", "ps.1")
OPTIONS = ("--drop-in", "--consistent-snapshots", "--snapshot-secs", "0.2", "--grace", "60")


@pytest.mark.long
def test_row_81_over_machines_no_task_is_paused_and_a_checkpoint_says_that_it_is_mixed(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=PROGRAM) as run:
        chief = run.launch_all()
        for task in TASKS[:2]:
            chief.wait_event("recovered", 1, task)
        step = 0
        for _ in range(3):
            step = wait_saved(chief, is_mixed=True, after=step).step
        assert "--consistent-snapshots cannot pause" in text_of(chief, "chief")
        assert not chief.events("held")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)
