"""Servers on other machines capture their own variables, and the chief saves what they held at one moment."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.run import test_server_capture
from tests.support.launched import Launched, procsv
from tests.support.machines import machines
from tests.support.replicas import memory_step, text_of, wait_for_memory

pytestmark = [pytest.mark.fault, pytest.mark.long]

TASKS = ("chief", "ps.0", "ps.1")
OPTIONS = ("--drop-in", "--snapshot-secs", "0.5", "--peer-timeout", "10", "--grace", "60")


def copies(run: Launched, server: str) -> bool:
    """Return whether that server was asked to copy its capture and is waiting with it."""
    return "holds a copy" in text_of(run, server)


def test_row_79_the_chief_fetches_what_each_server_captured_and_every_variable_is_of_that_step(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=test_server_capture.PROGRAM, target=("train.py", "waits")) as run:
        chief = run.launch_all()
        chief.wait_event("recovered", 1, "chief")
        wait_for_memory(chief, memory_step(chief))
        (tmp_path / "held").touch()
        for server in TASKS[1:]:
            chief.wait_for(f"a copy of {server}'s", partial(copies, chief, server))
        (tmp_path / "held").unlink()
        wait_for_memory(chief, memory_step(chief))
        chief.kill("ps.1")  # its variables are restored from a snapshot
        chief.wait_event("session_recovered", 1, "chief")
        wait_for_memory(chief, chief.step())
        assert not chief.events("captured_by_chief")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)
        (stopped,) = chief.events("stopped")
        test_server_capture.check(chief, stopped["durable_step"])


def test_row_79_what_is_damaged_in_transit_is_dropped_and_the_chief_fetches_it_itself(tmp_path: Path) -> None:
    with machines(tmp_path, TASKS, *OPTIONS, program=test_server_capture.PROGRAM) as run:
        run.launch("ps.1", PROCSV_FAILPOINTS="sender.piece=20*off->1*torn")
        run.launch("ps.0")
        chief = run.launch("chief")
        (told,) = chief.wait_event("captured_by_chief")
        assert "damaged" in told["why"]
        wait_for_memory(chief, chief.step())
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.codes() == dict.fromkeys(TASKS, 75)
        (stopped,) = chief.events("stopped")
        test_server_capture.check(chief, stopped["durable_step"])
