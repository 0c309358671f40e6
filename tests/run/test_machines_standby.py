"""A task on a member's machine starts from a standby there, as on the coordinator's machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.launched import Launched, procsv
from tests.support.machines import Machines, machines

pytestmark = pytest.mark.fault

TASKS = ("chief", "worker.0")
NEARLY_READY = """
import os, pathlib, threading
end = pathlib.Path(os.environ["PROCSV_LOGDIR"]) / "end"
if os.environ["PROCSV_TASK"] == "chief":
    while not end.exists():
        threading.Event().wait(0.05)
    raise SystemExit
import slow_to_import
from procsv.training.runtime.context import current

current().tell_imports("first step")  # it has imported all that it needs
threading.Event().wait()
"""
SLOW_TO_IMPORT = """
import pathlib, threading

here = pathlib.Path(__file__).parent
try:
    (here / "once").touch(exist_ok=False)
except FileExistsError:  # in the standby
    (here / "again").touch()
    while not (here / "open").exists():
        threading.Event().wait(0.05)
"""


@contextlib.contextmanager
def importing(tmp_path: Path, *options: str) -> Iterator[tuple[Machines, Launched, Path]]:
    """Run with a worker whose standby imports until a file `open` is in the directory."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    options = ("--standby", "warm", "--backoff", "0..0", *options)
    with machines(tmp_path, TASKS, *options, program=NEARLY_READY, PYTHONPATH=str(installed)) as run:
        chief = run.launch_all()
        chief.wait_for("a standby that imports", lambda: (installed / "again").exists())
        yield run, chief, installed


def test_a_start_ordered_while_a_standby_imports_waits_for_it_as_on_the_coordinators_machine(
    tmp_path: Path,
) -> None:
    with importing(tmp_path) as (run, chief, installed):
        chief.kill("worker.0")
        chief.wait_event("restarting", 1, "worker.0")
        (installed / "open").touch()

        (promoted,) = chief.wait_event("promoted", 1, "worker.0")
        assert promoted["incarnation"] == 2
        assert psutil.Process(promoted["pid"]).ppid() == run.launches["worker.0"].process.pid
        (run.logdir / "end").touch()
        assert run.codes() == dict.fromkeys(TASKS, 0)


def test_a_start_that_waits_for_a_standby_does_not_delay_a_stop(tmp_path: Path) -> None:
    with importing(tmp_path, "--grace", "60") as (run, chief, _):
        chief.kill("worker.0")
        chief.wait_event("restarting", 1, "worker.0")

        assert procsv("stop", str(run.logdir)).returncode == 0

        assert run.is_stopped_unsaved()
        assert len(chief.events("spawned", "worker.0")) == 1
