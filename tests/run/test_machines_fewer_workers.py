"""A worker on another machine that fails at every start is given up; the other launches go on or
end accordingly.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from tests.run.test_machines_adopted import kill_machine
from tests.run.test_machines_mirror import GATE, STEPS, ended_with
from tests.run.test_machines_mirror import PROGRAM as TRAINS
from tests.support.launched import Launched, procsv
from tests.support.machines import Machines, machines
from tests.support.numpy_training import digest_after
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

BAD, TASKS = "worker.1", ("chief", "worker.0", "worker.1")
OPTIONS = (
    "--max-failures",
    "2",
    "--backoff",
    "0.1..0.2",
    "--snapshot-secs",
    "0.1",
    "--peer-timeout",
    "10",
    "--grace",
    "10",
)
PROGRAM = (
    f"""
import os
if os.environ["PROCSV_TASK"] == {BAD!r}:
    raise ValueError("this machine is no good")
"""
    + TRAINS
)


def launches(directory: Path, least: int) -> contextlib.AbstractContextManager[Machines]:
    options = ("--workers", "2", "--min-workers", str(least), *OPTIONS)
    return machines(directory, TASKS, *options, program=PROGRAM, PYTHONPATH=str(ROOT))


def wait_given_up(chief: Launched) -> None:
    (given_up,) = chief.wait_event("task_given_up", 1, BAD)
    assert given_up["workers"] == 1
    assert not chief.events("gave_up")


@pytest.mark.long
def test_row_63_the_others_complete_without_a_worker_that_was_given_up_and_all_launches_exit_0(
    tmp_path: Path,
) -> None:
    with launches(tmp_path, 1) as run:
        chief = run.launch_all()
        wait_given_up(chief)
        starts = len(chief.events("spawned", BAD))
        chief.wait_step(GATE)
        assert run.launches[BAD].process.poll() is None, "its launch stays"
        assert {one["task"]: one["state"] for one in chief.status()["tasks"]}[BAD] == "failed"

        chief.kill("worker.0")
        chief.wait_event("spawned", 2, "worker.0")
        (tmp_path / "open").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)

        assert len(chief.events("spawned", BAD)) == starts, "nobody has started it again"
        assert len(chief.events("spawned", "chief")) == 1
        assert f"{BAD} was given up: " in chief.said().rpartition(" without it, with 1 worker")[2]
        (bits,) = ended_with(chief)
    assert bits == digest_after(STEPS)
    report = procsv("report", str(run.logdir)).stdout
    assert f"continues without {BAD}" in " ".join(report.split())


def test_row_63_with_too_few_workers_left_all_launches_exit_70_and_the_last_step_is_saved(tmp_path: Path) -> None:
    with launches(tmp_path, 2) as run:
        chief = run.launch_all()
        assert run.codes() == dict.fromkeys(TASKS, 70)
        (gave_up,) = chief.events("gave_up")
        assert gave_up["role"] == BAD
        assert not chief.events("task_given_up")


@pytest.mark.long
def test_row_63_losing_the_machine_of_a_worker_that_was_given_up_is_like_losing_any_member(
    tmp_path: Path,
) -> None:
    with (
        tempfile.TemporaryDirectory() as own,  # a killed launch leaves files there that its next start would remove
        launches(tmp_path, 1) as run,
    ):
        run.launch(BAD, XDG_RUNTIME_DIR=own)
        run.launch("worker.0")
        chief = run.launch("chief")
        wait_given_up(chief)
        kill_machine(run.launches.pop(BAD))
        (lost,) = chief.wait_event("member_lost")
        assert lost["role"] == BAD
        assert run.codes() == {"chief": 75, "worker.0": 75}
        (stopped,) = chief.events("stopped")
        assert stopped["durable_step"] == stopped["step"] > 0
